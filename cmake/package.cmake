# What `cmake --install` and the packages hold. One layout for all of them:
#   bin/sluice   lib/sluice/libsluice_{cuda,grpc}.so   share/{doc/sluice,man,bash-completion,zsh,fish}
# The program finds the shared objects relative to itself (backend/cuda_plugin.cc, net/grpc_server.cc) and carries
# everything else, so the tree runs from any folder. scripts/package.sh builds the packages and tests them.
# Each component is a .deb of its own.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME sluice)
install(TARGETS sluice RUNTIME DESTINATION bin)
if(SLUICE_HAS_CUDA)
  # cuBLASLt: beside the shared object, from the wheel nvidia-cublas beside ours, or the toolkit's own folder.
  set_target_properties(sluice_cuda PROPERTIES
    INSTALL_RPATH "$ORIGIN:$ORIGIN/../../../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/lib:/usr/local/cuda/lib64")
  install(TARGETS sluice_cuda LIBRARY DESTINATION lib/sluice)
elseif(SLUICE_PORTABLE)
  # With the CUDA backend both sides of dlopen() share one libstdc++: exceptions cross it.
  target_link_options(sluice PRIVATE -static-libstdc++ -static-libgcc)
endif()

if(SLUICE_HAS_GRPC)
  install(TARGETS sluice_grpc LIBRARY DESTINATION lib/sluice COMPONENT grpc)
  install(FILES packaging/copyright DESTINATION share/doc/sluice-grpc COMPONENT grpc)
endif()

set(doc share/doc/sluice)
install(FILES LICENSE THIRD_PARTY.md README.md packaging/serve.yaml DESTINATION ${doc})
# Licences of what is compiled or linked in, as the distribution states them (Boost's asks for none in binaries).
set(licences "cli11=libcli11-dev")
if(SLUICE_PORTABLE)
  list(APPEND licences "yaml-cpp=libyaml-cpp-dev" "pcre2=libpcre2-dev" "openssl=libssl-dev" "gcc=gcc-[0-9]*-base")
endif()
foreach(licence ${licences})
  string(REGEX MATCH "^([^=]+)=(.+)$" matched ${licence})
  set(name ${CMAKE_MATCH_1})
  file(GLOB texts "/usr/share/doc/${CMAKE_MATCH_2}/copyright")
  if(texts)
    list(GET texts 0 text)
    file(REAL_PATH ${text} text)  # some are links to another package's
    install(FILES ${text} DESTINATION ${doc}/licences RENAME ${name}.txt)
  endif()
endforeach()
if(NOT SLUICE_PORTABLE)
  install(FILES packaging/sluice.service DESTINATION lib/systemd/system)
  install(FILES packaging/copyright DESTINATION ${doc})
endif()
# Made by the program itself.
if(NOT CMAKE_CROSSCOMPILING)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  install(CODE "
    set(share \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\")
    execute_process(COMMAND \"${Python3_EXECUTABLE}\" \"${CMAKE_SOURCE_DIR}/scripts/make_share.py\"
                    \"$<TARGET_FILE:sluice>\" \"\${share}\" COMMAND_ERROR_IS_FATAL ANY)")
endif()

set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_VENDOR "The sluice authors")
# A package's maintainer is who builds it, named as Debian's own tools take it from the environment.
set(CPACK_PACKAGE_CONTACT "sluice authors <root@localhost>")
if(NOT "$ENV{DEBFULLNAME}" STREQUAL "" AND NOT "$ENV{DEBEMAIL}" STREQUAL "")
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
if(SLUICE_PORTABLE)
  set(CPACK_GENERATOR TGZ)
  set(CPACK_PACKAGE_FILE_NAME sluice-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
else()
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_ALL sluice)
  set(CPACK_DEBIAN_SLUICE_PACKAGE_NAME sluice)
  set(CPACK_DEBIAN_SLUICE_PACKAGE_RECOMMENDS "python3, ca-certificates")  # python3: `smollm2` is fetched with pip
  set(CPACK_DEBIAN_SLUICE_PACKAGE_SUGGESTS "sluice-grpc")
  if(UCX_FOUND)  # loaded by its name when it is asked for
    string(APPEND CPACK_DEBIAN_SLUICE_PACKAGE_SUGGESTS ", libucx0")
  endif()
  if(SLUICE_HAS_GRPC)  # not in the other package: gRPC is large, and for one option
    list(APPEND CPACK_COMPONENTS_ALL grpc)
    set(CPACK_DEBIAN_GRPC_PACKAGE_NAME sluice-grpc)
    set(CPACK_DEBIAN_GRPC_PACKAGE_DEPENDS "sluice (= ${PROJECT_VERSION})")
    set(CPACK_DEBIAN_GRPC_DESCRIPTION "gRPC for sluice serve
The shared object that sluice serve loads for --grpc-port, which speaks the
gRPC service of vLLM.")
  endif()
  set(CPACK_DEBIAN_SLUICE_DESCRIPTION "inference and serving engine for open-weight language models
Loads GGUF files and Hugging Face directories, serves many users at once
on a CPU or an NVIDIA GPU behind an OpenAI-compatible API, and gives every
request the same bytes whoever shares its batch.")
endif()
include(CPack)

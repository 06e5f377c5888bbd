# Flags for everything. Floating point is exact by contract: no contraction, no fast-math.
add_compile_options(-Wall -Wextra -Wshadow -Wpedantic -Wnon-virtual-dtor -Werror
                    -ffp-contract=off -fno-math-errno -fstack-protector-strong)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict)  # false alarms on std::string concatenation
endif()
if(SLUICE_FUZZ)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1 -DNDEBUG")
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")
endif()
add_compile_definitions($<$<NOT:$<CONFIG:Debug>>:_GLIBCXX_ASSERTIONS>)
# Tests spend their time in the libraries: compiling them well costs more than it saves.
set(SLUICE_TEST_FLAGS $<$<CONFIG:Release>:-O1>)
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
else()
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
endif()
if(SLUICE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
add_link_options(-Wl,-z,relro,-z,now)

# A file named *_<isa>.cc is compiled for that ISA and only called behind a run-time check.
set(SLUICE_ISA_FLAGS_avx2   -mavx2 -mfma -mf16c)
set(SLUICE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)
set(SLUICE_ISA_FLAGS_amx    -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
                            -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # false alarms inside GCC 12's avx512 intrinsics
  foreach(isa avx512 amx)
    list(APPEND SLUICE_ISA_FLAGS_${isa} -Wno-maybe-uninitialized -Wno-uninitialized)
  endforeach()
endif()
set(SLUICE_ISA_FLAGS_neon   -march=armv8.2-a+fp16+dotprod)
set(SLUICE_ISA_FLAGS_i8mm   -march=armv8.2-a+fp16+dotprod+i8mm)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(SLUICE_ISAS neon i8mm)
  set(SLUICE_FOREIGN_ISAS avx2 avx512 amx)
else()
  set(SLUICE_ISAS avx2 avx512 amx)
  set(SLUICE_FOREIGN_ISAS neon i8mm)
endif()

# The CUDA backend as a shared object beside the program (backend/cuda_plugin.h): the program itself
# does not depend on it. Its tests are executables to run on a machine with a GPU.
set(SLUICE_HAS_CUDA OFF)
if(SLUICE_SANITIZE OR SLUICE_FUZZ OR SLUICE_CUDA STREQUAL OFF)
  return()
endif()
# Looked at before CMake tries it: an old nvcc would stop the configuration.
find_program(SLUICE_NVCC nvcc HINTS ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} /usr/local/cuda/bin)
set(nvcc_version 0)
if(SLUICE_NVCC)
  execute_process(COMMAND ${SLUICE_NVCC} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
  if(nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)")
    set(nvcc_version ${CMAKE_MATCH_1})
  endif()
endif()
if(nvcc_version VERSION_LESS 12.9)  # C++20, and scales per row and column in cuBLASLt
  if(SLUICE_CUDA STREQUAL ON)
    message(FATAL_ERROR "SLUICE_CUDA=ON needs nvcc 12.9 or newer (found: ${nvcc_version})")
  endif()
  message(STATUS "no CUDA backend: nvcc 12.9 or newer not found")
  return()
endif()
set(CMAKE_CUDA_COMPILER ${SLUICE_NVCC})
set(CMAKE_CUDA_ARCHITECTURES OFF)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know CUDA 13's
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
set(SLUICE_HAS_CUDA ON)

set(cuda_archs "")
if("90" IN_LIST SLUICE_CUDA_ARCHS AND "90a" IN_LIST SLUICE_CUDA_ARCHS)
  message(FATAL_ERROR "SLUICE_CUDA_ARCHS has 90 and 90a, which are for the same GPU: use 90a")
endif()
foreach(arch ${SLUICE_CUDA_ARCHS})
  if(NOT arch MATCHES "^(8[0-9]|(9|1[0-9])[0-9]a?|([89]|1[0-9])[0-9]-virtual)$")
    message(FATAL_ERROR "SLUICE_CUDA_ARCHS=${arch}: use 80, 86, 89, 90a, 100, 120, or 80-virtual for PTX that the driver compiles")
  endif()
  if(arch MATCHES "^([0-9]+)-virtual$")
    list(APPEND cuda_archs -gencode=arch=compute_${CMAKE_MATCH_1},code=compute_${CMAKE_MATCH_1})
  else()
    list(APPEND cuda_archs -gencode=arch=compute_${arch},code=sm_${arch})
  endif()
endforeach()
list(JOIN SLUICE_CUDA_ARCHS " " cuda_arch_names)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/backend/cuda/target.cu PROPERTIES
  COMPILE_DEFINITIONS "SLUICE_CUDA_ARCHS=\"${cuda_arch_names}\"")
set(cuda_flags --expt-relaxed-constexpr -lineinfo ${cuda_archs})
file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu
     ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cc)
list(APPEND cuda_sources ${CMAKE_SOURCE_DIR}/src/backend/backend.cc ${CMAKE_SOURCE_DIR}/src/backend/gemm_choices.cc
     ${CMAKE_SOURCE_DIR}/src/backend/page_memory.cc ${CMAKE_SOURCE_DIR}/src/backend/cpu/matmul/load_quant.cc)
list(FILTER cuda_sources EXCLUDE REGEX "_(test|bench)\\.cu$")
if(SLUICE_QUICK AND NOT EXISTS /dev/nvidia0)  # they are compiled here and not run
  set(quick_sources ${cuda_sources})
  list(FILTER quick_sources INCLUDE REGEX "\\.cu$")
  list(FILTER quick_sources EXCLUDE REGEX "/wide(_shares)?\\.cu$")  # unoptimised, they have too few registers
  set_source_files_properties(${quick_sources} PROPERTIES COMPILE_OPTIONS "-Xcicc=-O1;-Xptxas=-O1")
endif()

list(APPEND cuda_sources ${CMAKE_SOURCE_DIR}/src/backend/cuda_archs.cc)

# The project's flags are g++'s: each CUDA target states its own.
function(sluice_cuda_target name)
  set_target_properties(${name} PROPERTIES COMPILE_OPTIONS "" COMPILE_DEFINITIONS "")
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags};-Xcompiler=-Wall,-fPIC>"
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Werror;-ffp-contract=off>")
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endfunction()

add_library(sluice_cuda_kernels OBJECT ${cuda_sources})
sluice_cuda_target(sluice_cuda_kernels)
if(SLUICE_BATCH GREATER 1)  # of its C++ files; CMake batches no CUDA
  set_target_properties(sluice_cuda_kernels PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 100)
endif()
set_target_properties(sluice_cuda_kernels PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
add_library(sluice_cuda SHARED $<TARGET_OBJECTS:sluice_cuda_kernels>)
set_target_properties(sluice_cuda PROPERTIES LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
target_link_libraries(sluice_cuda PRIVATE sluice_tensor CUDA::cudart_static CUDA::cublasLt)
target_link_options(sluice_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,defs)

# Programs for a machine with a GPU: `cmake --build DIR --target cuda_tests`; scripts/test_gpu.sh runs them.
if(SLUICE_TESTS)
  function(sluice_cuda_program name)
    add_executable(${name} EXCLUDE_FROM_ALL ${ARGN} $<TARGET_OBJECTS:sluice_cuda_kernels>)
    sluice_cuda_target(${name})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(${name} PRIVATE sluice_exec GTest::gtest CUDA::cudart_static CUDA::cublasLt)
  endfunction()
  sluice_cuda_program(cuda_attention_test src/backend/cuda/attention_test.cu src/backend/cuda/attention_prefix_test.cu
                      src/backend/cuda/attention_bench.cu)
  sluice_cuda_program(cuda_product_test tests/cuda_product_test.cu)
  sluice_cuda_program(cuda_packed_test tests/cuda_packed_test.cu)
  sluice_cuda_program(cuda_stack_test tests/cuda_stack_test.cu)
  sluice_cuda_program(cuda_sampling_test tests/cuda_sampling_test.cu)
  sluice_cuda_program(cuda_sampling_bench tests/cuda_sampling_bench.cu)
  add_custom_target(cuda_tests DEPENDS sluice sluice_cuda cuda_attention_test cuda_product_test cuda_packed_test
                    cuda_sampling_test cuda_sampling_bench cuda_stack_test)
endif()

include(CheckCXXCompilerFlag)
include(CheckCXXSourceCompiles)
include(CheckPIESupported)

# Flags for everything. Floating point is exact by contract: no contraction, no fast-math.
add_compile_options(-Wall -Wextra -Wshadow -Wpedantic -Wnon-virtual-dtor -Werror
                    -ffp-contract=off -fno-math-errno -fstack-protector-strong)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  add_compile_options(-Wno-restrict)  # false alarms on std::string concatenation
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND SLUICE_PCH)
  # g++ reports false alarms in precompiled system headers, which it drops in others. So it only warns, and
  # scripts/run_tests.sh fails on a warning about a file of ours.
  add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-error)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1 -DNDEBUG")
add_compile_definitions($<$<NOT:$<CONFIG:Debug>>:_GLIBCXX_ASSERTIONS>)
# Tests spend their time in the libraries: compiling them well costs more than it saves. The same holds under a
# sanitizer for libraries that compute little.
set(SLUICE_TEST_FLAGS $<IF:$<CONFIG:Release>,-O1,-O0>)
set(SLUICE_LIGHT_FLAGS "")
if(SLUICE_QUICK)
  set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g0 -DNDEBUG")
  set(SLUICE_LIGHT_FLAGS -O1)
endif()
if(SLUICE_SANITIZE)
  set(SLUICE_LIGHT_FLAGS -O0)
endif()
if(SLUICE_SANITIZE)
  add_compile_options(-fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${SLUICE_SANITIZE})
  # A null or stray pointer is ASan's to find when it is used. These checks stand at every access, and take a quarter of
  # the time to compile.
  if(SLUICE_SANITIZE MATCHES undefined AND NOT SLUICE_SANITIZE_ALL)
    add_compile_options(-fno-sanitize=null,alignment,object-size,pointer-overflow,vptr)
  endif()
else()
  # Level 3 (GCC 12, clang 14 with a glibc that knows it) checks sizes known only at run time too.
  set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_cxx_source_compiles("#include <cstring>\nint main() {}" SLUICE_FORTIFY_3)
  unset(CMAKE_REQUIRED_FLAGS)
  set(fortify 2)
  if(SLUICE_FORTIFY_3)
    set(fortify 3)
  endif()
  add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${fortify})
endif()
# scripts/check_hardening.py says what the program got. Control flow: CET on x86-64, BTI and PAC on
# arm64 (no-ops on CPUs without).
foreach(flag -fcf-protection=full -mbranch-protection=standard -fstack-clash-protection)
  string(MAKE_C_IDENTIFIER "SLUICE_HAS${flag}" has)
  check_cxx_compiler_flag("-Werror ${flag}" ${has})
  if(${has})
    add_compile_options(${flag})
  endif()
endforeach()
check_pie_supported()
add_link_options(-Wl,-z,relro,-z,now)
# Programs with sanitizers are large: lld links one in a fraction of the time.
find_program(SLUICE_LLD ld.lld)
if(SLUICE_SANITIZE AND SLUICE_LLD AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_link_options(-fuse-ld=lld)
endif()

# A file named *_<isa>.cc is compiled for that ISA and only called behind a run-time check.
set(SLUICE_ISA_FLAGS_avx2   -mavx2 -mfma -mf16c)
set(SLUICE_ISA_FLAGS_avxvnni -mavx2 -mfma -mf16c -mavxvnni)
if(SLUICE_EVEX_VNNI)
  set(SLUICE_ISA_FLAGS_avxvnni -mavx2 -mfma -mf16c -mavx512f -mavx512vl -mavx512vnni)
  add_compile_definitions(SLUICE_EVEX_VNNI)
endif()
set(SLUICE_ISA_FLAGS_avx512f -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(SLUICE_ISA_FLAGS_avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni)
set(SLUICE_ISA_FLAGS_amx    -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
                            -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # false alarms inside GCC 12's avx512 intrinsics
  foreach(isa avx512f avx512 amx)
    list(APPEND SLUICE_ISA_FLAGS_${isa} -Wno-maybe-uninitialized -Wno-uninitialized)
  endforeach()
endif()
set(SLUICE_ISA_FLAGS_neon   -march=armv8.2-a+fp16+dotprod)
set(SLUICE_ISA_FLAGS_i8mm   -march=armv8.2-a+fp16+dotprod+i8mm)
set(SLUICE_ISA_FLAGS_bfmmla -march=armv8.2-a+fp16+dotprod+bf16)
# In unrolled tiles these checks take minutes to compile and see nothing that ASan does not.
if(SLUICE_SANITIZE MATCHES undefined AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  foreach(isa avx2 avxvnni avx512f avx512 amx neon i8mm bfmmla)
    list(APPEND SLUICE_ISA_FLAGS_${isa} -fno-sanitize=null,alignment,object-size,pointer-overflow)
  endforeach()
endif()
# ASan's checks as calls instead of in line: a third of the time.
if(SLUICE_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  foreach(isa avx2 avxvnni avx512f avx512 amx neon i8mm bfmmla)
    list(APPEND SLUICE_ISA_FLAGS_${isa} -mllvm -asan-instrumentation-with-call-threshold=0)
  endforeach()
endif()
# Kernels share nothing between threads; the pool that runs them is in base.
if(SLUICE_SANITIZE STREQUAL thread)
  foreach(isa avx2 avxvnni avx512f avx512 amx neon i8mm bfmmla)
    list(APPEND SLUICE_ISA_FLAGS_${isa} -fno-sanitize=thread)
  endforeach()
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(SLUICE_ISAS neon i8mm bfmmla)
  set(SLUICE_FOREIGN_ISAS avx2 avxvnni avx512f avx512 amx)
else()
  set(SLUICE_ISAS avx2 avxvnni avx512f avx512 amx)
  set(SLUICE_FOREIGN_ISAS neon i8mm bfmmla)
endif()

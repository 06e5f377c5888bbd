# Cross-building for 64-bit ARM on Debian and Ubuntu; tests run in qemu's user mode.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu)

# Libraries of the other architecture are not installed; see the files beside this one.
set(GTest_DIR ${CMAKE_CURRENT_LIST_DIR})
set(yaml-cpp_DIR ${CMAKE_CURRENT_LIST_DIR})
# Nor may those of this machine be found: both are optional.
set(CMAKE_DISABLE_FIND_PACKAGE_PkgConfig TRUE)
set(CMAKE_DISABLE_FIND_PACKAGE_OpenSSL TRUE)

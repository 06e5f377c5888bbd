# GoogleTest from the sources that libgtest-dev carries.
if(NOT TARGET GTest::gtest_main)
  add_library(cross_gtest_main STATIC /usr/src/googletest/googletest/src/gtest-all.cc
                                      /usr/src/googletest/googletest/src/gtest_main.cc)
  target_include_directories(cross_gtest_main SYSTEM PUBLIC /usr/src/googletest/googletest/include
                                              PRIVATE /usr/src/googletest/googletest)
  target_compile_options(cross_gtest_main PRIVATE -w)
  target_link_libraries(cross_gtest_main PUBLIC pthread)
  add_library(GTest::gtest ALIAS cross_gtest_main)
  add_library(GTest::gtest_main ALIAS cross_gtest_main)
endif()

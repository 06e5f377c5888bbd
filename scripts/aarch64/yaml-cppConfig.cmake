# Only the command line needs it, and tests of the libraries do not: a name to link against.
add_library(yaml-cpp INTERFACE IMPORTED)

// Which TensorFlow, MPI and sources this library was compiled for. No other file depends on these three
// words, so that a library for another MPI takes the objects of the rest as they are.
#include "api/c_api.h"

const char* tfddl_build_info(void) {
  return "tf=" TFDDL_BUILD_TF ";mpi=" TFDDL_BUILD_MPI ";source=" TFDDL_SOURCE_HASH;
}

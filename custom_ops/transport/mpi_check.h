// Turns an error code of MPI into an exception.
#pragma once

#include <mpi.h>

#include <stdexcept>
#include <string>

namespace tfddl {

inline void CheckMpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(std::string("tfddl: ") + call + " failed: " + std::string(text, text + length));
}

}  // namespace tfddl

// The check that ends a test, and the exit code of a test that cannot run here.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

// The exit code that ctest reports as "Skipped" (SKIP_RETURN_CODE in CMakeLists.txt): main() returns it.
inline int Skip(const char* why) {
  std::printf("skipped: %s\n", why);
  return 77;
}

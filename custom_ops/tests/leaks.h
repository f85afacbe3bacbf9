// For tests with engines that fail.
#pragma once

// A failed engine leaks the memory that transfers may still touch.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_leaks=0";
}

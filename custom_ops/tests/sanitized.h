// Whether a sanitizer watches the test. A sanitizer makes the test several times slower, and finds faults in
// small data too: the largest jobs run without one.
#pragma once

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

#include "transport/copy.h"

#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#endif

namespace tfddl {

#ifdef __SSE2__

void StreamUnfenced(void* to, const void* from, size_t bytes) {
  constexpr size_t kLine = 64;
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine);
  std::memcpy(target, source, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(source + at);
    auto* out = reinterpret_cast<__m128i*>(target + at);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(target + at, source + at, bytes - at);
}

void StreamFence() { _mm_sfence(); }

#else

void StreamUnfenced(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

void StreamFence() {}

#endif

void StreamCopy(void* to, const void* from, size_t bytes) {
  StreamUnfenced(to, from, bytes);
  StreamFence();
}

void CopyPart(void* to, const void* from, size_t bytes, size_t whole) {
  if (bytes == 0) return;  // then the pointers may be null
  if (whole >= kStreamBytes) {
    StreamCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace tfddl

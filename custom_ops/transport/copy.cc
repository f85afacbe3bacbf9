#include "transport/copy.h"

#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#endif

namespace tfddl {

#ifdef __SSE2__

namespace {

constexpr size_t kLine = 64;

// Copies whole lines; `to` is aligned to a line.
void StreamLines(char* to, const char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
}

// Copies a line in one store, so that it reaches memory in one transfer.
__attribute__((target("avx512f"))) void StreamWideLines(char* to, const char* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  }
}

}  // namespace

std::vector<void (*)(char*, const char*, size_t)> WaysToStreamLines() {
  if (__builtin_cpu_supports("avx512f")) return {StreamLines, StreamWideLines};
  return {StreamLines};
}

void StreamUnfenced(void* to, const void* from, size_t bytes) {
  static const auto stream_lines = WaysToStreamLines().back();
  auto* target = static_cast<char*>(to);
  auto* source = static_cast<const char*>(from);
  const size_t head = std::min(bytes, (kLine - reinterpret_cast<uintptr_t>(target) % kLine) % kLine);
  std::memcpy(target, source, head);
  const size_t lines = (bytes - head) / kLine * kLine, at = head + lines;
  stream_lines(target + head, source + head, lines);
  std::memcpy(target + at, source + at, bytes - at);
}

void StreamFence() { _mm_sfence(); }

#else

std::vector<void (*)(char*, const char*, size_t)> WaysToStreamLines() { return {}; }

void StreamUnfenced(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

void StreamFence() {}

#endif

void StreamCopy(void* to, const void* from, size_t bytes) {
  StreamUnfenced(to, from, bytes);
  StreamFence();
}

void CopyPart(void* to, const void* from, size_t bytes, size_t whole) {
  if (bytes == 0) return;  // the pointers may be null
  if (whole >= kStreamBytes) {
    StreamCopy(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace tfddl

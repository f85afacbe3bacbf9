// Streaming copies of every length and alignment write the target and nothing else.
#include "transport/copy.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "tests/check.h"

namespace tfddl {
namespace {

void TestEveryAlignment() {
  constexpr size_t kRoom = 400;
  std::vector<char> from(kRoom), expected(kRoom), to(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<char>(i * 37 + 1);
  for (size_t target = 64; target < 128; ++target) {
    for (size_t source : {size_t{0}, size_t{5}, target}) {
      for (size_t bytes : {0, 1, 63, 64, 65, 127, 128, 200}) {
        expected.assign(kRoom, 'x');
        to = expected;
        for (size_t i = 0; i < bytes; ++i) expected[target + i] = from[source + i];
        StreamCopy(to.data() + target, from.data() + source, bytes);
        CHECK(to == expected);
      }
    }
  }
}

void TestEveryWay() {
  constexpr size_t kLine = 64, kLines = 5;
  alignas(kLine) char to[(kLines + 1) * kLine];
  std::vector<char> from(kLines * kLine + 3);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 37 + 1);
  for (const auto way : WaysToStreamLines()) {
    for (size_t bytes = 0; bytes <= kLines * kLine; bytes += kLine) {
      std::fill(std::begin(to), std::end(to), 'x');
      way(to, from.data() + 3, bytes);
      StreamFence();
      CHECK(std::equal(to, to + bytes, from.data() + 3));
      CHECK(std::count(to + bytes, std::end(to), 'x') == static_cast<std::ptrdiff_t>(sizeof(to) - bytes));
    }
  }
}

void TestParts() {
  CopyPart(nullptr, nullptr, 0, 0);
  const std::vector<char> from(1000, 'a');
  for (size_t whole : {size_t{1000}, kStreamBytes}) {
    std::vector<char> to(1001, 'b');
    CopyPart(to.data(), from.data(), 1000, whole);
    CHECK(to[0] == 'a' && to[999] == 'a' && to[1000] == 'b');
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestEveryAlignment();
  tfddl::TestEveryWay();
  tfddl::TestParts();
  std::puts("copy: ok");
  return 0;
}

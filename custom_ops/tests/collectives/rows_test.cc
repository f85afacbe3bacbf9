// Collectives that split and join rows: groups, uneven rows, ranks and tensors without rows.
#include "tests/collectives/row_job.h"

namespace tfddl {
namespace {

void TestReducescatter(int size, const std::vector<int64_t>& rows, const std::vector<int64_t>& row) {
  Job job(size, 3);
  const auto ranks = static_cast<size_t>(size);
  std::vector<std::vector<std::vector<float>>> in(ranks), out(ranks);
  Outcomes outcomes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < rows.size(); ++i) {
      in[rank].push_back(Values(rank, i, static_cast<size_t>(rows[i] * row[i])));
      const int64_t mine = RowsOf(rows[i], static_cast<int>(rank), size);
      out[rank].emplace_back(static_cast<size_t>(mine * row[i]));
    }
    Request request = Rows(Kind::kReducescatter, in[rank], row, outcomes.At(rank));
    for (size_t i = 0; i < rows.size(); ++i) request.buffers[i].out = out[rank][i].data();
    job.engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto first = static_cast<size_t>(RowsBegin(rows[i], static_cast<int>(rank), size) * row[i]);
      for (size_t k = 0; k < out[rank][i].size(); ++k) {
        float sum = 0;
        for (size_t other = 0; other < ranks; ++other) sum += Value(other, i, first + k);
        CHECK(out[rank][i][k] == sum);
      }
    }
  }
  job.End();
}

// Rank r brings r * `rows` rows of each tensor.
void TestGroupedAllgather(int size, const std::vector<int64_t>& rows, const std::vector<int64_t>& row) {
  Job job(size, 3);
  const auto ranks = static_cast<size_t>(size);
  std::vector<std::vector<std::vector<float>>> in(ranks), out(ranks);
  Outcomes outcomes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < rows.size(); ++i) {
      in[rank].push_back(Values(rank, i, rank * static_cast<size_t>(rows[i] * row[i])));
    }
    Request request = Rows(Kind::kAllgather, in[rank], row, outcomes.At(rank));
    request.allocate = AllocateIn(&out[rank], row);
    job.engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float> expected;
    for (const auto& members : in) expected.insert(expected.end(), members[i].begin(), members[i].end());
    for (const auto& gathered : out) CHECK(gathered[i] == expected);
  }
  job.End();
}

// The ranks with outputs for equal rows (Request::expected), and whether the rows are equal.
struct Expectation {
  bool all_expect;
  bool equal;
};

// Every rank brings 2 * `rows` rows of each tensor; in the unequal case the last rank brings none. The
// expected outputs are used if all ranks have them and the rows are equal, else new ones.
void TestExpected(int size, const std::vector<int64_t>& rows, const std::vector<int64_t>& row,
                  Expectation e) {
  Job job(size, 3);
  const auto ranks = static_cast<size_t>(size);
  std::vector<std::vector<std::vector<float>>> in(ranks), expected(ranks), out(ranks);
  Outcomes outcomes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const bool none = !e.equal && rank + 1 == ranks;
    for (size_t i = 0; i < rows.size(); ++i) {
      in[rank].push_back(Values(rank, i, none ? 0 : static_cast<size_t>(2 * rows[i] * row[i])));
      expected[rank].emplace_back(in[rank][i].size() * ranks);
    }
    Request request = Rows(Kind::kAllgather, in[rank], row, outcomes.At(rank));
    if (e.all_expect || rank > 0) {
      for (auto& output : expected[rank]) request.expected.push_back(output.data());
    }
    request.allocate = AllocateIn(&out[rank], row);
    job.engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<float> all;
    for (const auto& members : in) all.insert(all.end(), members[i].begin(), members[i].end());
    for (size_t rank = 0; rank < ranks; ++rank) {
      const bool used = e.all_expect && (e.equal || size == 1);
      CHECK(out[rank].empty() == used);
      CHECK((used ? expected : out)[rank][i] == all);
    }
  }
  job.End();
}

// Rank r sends (r + peer) % 3 * `unit` rows to each peer, and one row more to itself.
void TestAlltoall(int size, int64_t unit, int64_t row) {
  Job job(size, 3);
  const auto ranks = static_cast<size_t>(size);
  std::vector<std::vector<std::vector<float>>> in(ranks), out(ranks);
  std::vector<std::vector<float>> expected(ranks);
  Outcomes outcomes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<int64_t> splits;
    int64_t total = 1;
    for (size_t peer = 0; peer < ranks; ++peer) {
      splits.push_back(static_cast<int64_t>((rank + peer) % 3) * unit);
      total += splits.back();
    }
    in[rank].push_back(Values(rank, 0, static_cast<size_t>(total * row)));
    auto next = in[rank][0].begin();
    for (size_t peer = 0; peer < ranks; ++peer) {
      const auto end = next + static_cast<ptrdiff_t>(splits[peer] * row);
      expected[peer].insert(expected[peer].end(), next, end);
      next = end;
    }
    Request request = Rows(Kind::kAlltoall, in[rank], {row}, outcomes.At(rank));
    request.splits = splits;
    request.allocate = AllocateIn(&out[rank], {row});
    job.engines[rank]->Submit(std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < ranks; ++rank) CHECK(out[rank][0] == expected[rank]);
  job.End();
}

void TestAll() {
  for (int size : {1, 2, 3, 5}) {
    TestReducescatter(size, {7}, {3});
    TestReducescatter(size, {0}, {3});
    TestReducescatter(size, {100003}, {2});
    TestReducescatter(size, {7, 0, 60001, 2}, {3, 5, 1, 2});
    TestGroupedAllgather(size, {2, 0, 40001, 1, 50000}, {3, 2, 1, 4, 1});
    for (Expectation e : {Expectation{true, true}, {true, false}, {false, true}}) {
      TestExpected(size, {2, 0, 20001}, {3, 2, 1}, e);
    }
    TestAlltoall(size, 1, 3);
    TestAlltoall(size, 50001, 2);
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::OverBothTransports(tfddl::TestAll);
  std::puts("rows: ok");
  return 0;
}

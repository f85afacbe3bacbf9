// While ranks have joined, collectives of every kind and dtype run among the other ranks.
#include <random>

#include "base/support.h"
#include "core/arithmetic/reduce.h"
#include "tests/engine/join_job.h"
#include "tests/sanitized.h"

namespace tfddl {
namespace {

std::vector<size_t> ActiveOf(size_t ranks, unsigned mask) {
  std::vector<size_t> active;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (mask >> rank & 1) active.push_back(rank);
  }
  return active;
}

// Compares a reduction of `count` random elements with Reduce() over the active ranks.
void TestReduction(Job* job, DataType dtype, ReduceOp op, AverageOver over, int64_t count, unsigned mask) {
  const auto active = ActiveOf(job->engines.size(), mask);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  std::mt19937 random(static_cast<unsigned>(dtype) + mask);
  std::vector<std::vector<char>> in(active.size(), std::vector<char>(bytes)), out(in);
  std::vector<const void*> sources;
  std::vector<std::pair<size_t, Request>> requests;
  for (size_t i = 0; i < active.size(); ++i) {
    for (char& byte : in[i])
      byte = static_cast<char>(dtype == DataType::kBool ? random() & 1 : random() % 60);
    sources.push_back(in[i].data());
    Request request;
    request.name = "x";
    request.signature = std::string(NameOf(op)) + NameOf(dtype) + std::to_string(count);
    request.dtype = dtype;
    request.op = op;
    if (dtype == DataType::kFloat32) request.prescale = -2.0;
    request.buffers.push_back({in[i].data(), out[i].data(), count});
    requests.emplace_back(active[i], std::move(request));
  }
  std::vector<char> expected(bytes);
  const int taking_part = static_cast<int>(active.size());
  const int divisor = over == AverageOver::kActive ? taking_part : static_cast<int>(job->engines.size());
  Reduce({dtype, op, dtype == DataType::kFloat32 ? -2.0 : 1.0, 1.0, taking_part, divisor}, sources.data(),
         expected.data(), count);
  CheckOk(RunWithout(job, std::move(requests), over));
  for (const auto& result : out) CHECK(result == expected);
}

void TestReductions(int size) {
  Job job(size, 3);
  const unsigned all = (1u << size) - 1;
  unsigned mask = 0;
  for (int type = 0; type <= static_cast<int>(DataType::kComplex128); ++type) {
    for (ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      if (!Supports(op, static_cast<DataType>(type))) continue;
      for (AverageOver over : {AverageOver::kSize, AverageOver::kActive}) {
        mask = mask % all + 1;
        TestReduction(&job, static_cast<DataType>(type), op, over, 1 + type, mask);
      }
    }
  }
  for (mask = 1; mask <= all; ++mask) {
    TestReduction(&job, DataType::kFloat64, ReduceOp::kAverage, AverageOver::kSize, 50001, mask);
  }
  job.End();
}

void TestReducescatter(int size, unsigned mask, std::vector<int64_t> rows, int64_t row) {
  Job job(size, 3);
  const auto active = ActiveOf(job.engines.size(), mask);
  std::vector<std::vector<std::vector<float>>> in(active.size()), out(active.size());
  std::vector<std::pair<size_t, Request>> requests;
  for (size_t a = 0; a < active.size(); ++a) {
    Request request;
    request.name = "scatter";
    request.kind = Kind::kReducescatter;
    request.signature = "reducescatter";
    for (size_t i = 0; i < rows.size(); ++i) {
      in[a].push_back(Values(active[a], i, static_cast<size_t>(rows[i] * row)));
      const int rank = static_cast<int>(active[a]);
      out[a].emplace_back(static_cast<size_t>(RowsOf(rows[i], rank, size) * row));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      request.buffers.push_back({in[a][i].data(), out[a][i].data(), rows[i] * row, rows[i], row});
    }
    requests.emplace_back(active[a], std::move(request));
  }
  CheckOk(RunWithout(&job, std::move(requests)));
  for (size_t a = 0; a < active.size(); ++a) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto first = static_cast<size_t>(RowsBegin(rows[i], static_cast<int>(active[a]), size) * row);
      for (size_t k = 0; k < out[a][i].size(); ++k) {
        float sum = 0;
        for (size_t other : active) sum += Value(other, i, first + k);
        CHECK(out[a][i][k] == sum);
      }
    }
  }
  job.End();
}

// Alltoall: rank r sends r + 1 rows to rank 0, r + 2 to rank 1 and so on. Allgather: r + 1 rows to each rank.
void TestRows(int size, unsigned mask, Kind kind, size_t row) {
  Job job(size, 3);
  const auto ranks = static_cast<size_t>(size);
  const auto active = ActiveOf(ranks, mask);
  const bool split = kind == Kind::kAlltoall;
  const auto rows_to = [&](size_t from, size_t to) { return from + 1 + (split ? to : 0); };
  const auto first_to = [&](size_t from, size_t to) {
    size_t first = 0;
    for (size_t rank = 0; split && rank < to; ++rank) first += rows_to(from, rank);
    return first;
  };
  std::vector<std::vector<float>> in(ranks), out(ranks);
  std::vector<std::vector<int64_t>> came(ranks);
  std::vector<int64_t> divisors(ranks);
  std::vector<std::pair<size_t, Request>> requests;
  for (size_t rank : active) {
    const size_t total = split ? first_to(rank, ranks) : rows_to(rank, 0);
    in[rank] = Values(rank, 0, total * row);
    Request request;
    request.name = "rows";
    request.kind = kind;
    request.signature = NameOf(kind);
    request.buffers.push_back({in[rank].data(), nullptr, static_cast<int64_t>(total * row),
                               static_cast<int64_t>(total), static_cast<int64_t>(row)});
    for (size_t to = 0; split && to < ranks; ++to) {
      request.splits.push_back(static_cast<int64_t>(rows_to(rank, to)));
    }
    request.divisor = &divisors[rank];
    request.allocate = [&, rank](const std::vector<int64_t>& rows, std::vector<void*>* memory) {
      came[rank] = rows;
      int64_t sum = 0;
      for (int64_t count : rows) sum += count;
      out[rank].resize(static_cast<size_t>(sum) * row);
      memory->push_back(out[rank].data());
      return Status();
    };
    requests.emplace_back(rank, std::move(request));
  }
  CheckOk(RunWithout(&job, std::move(requests), AverageOver::kActive));
  for (size_t rank : active) {
    std::vector<int64_t> rows(ranks);
    std::vector<float> expected;
    for (size_t from : active) {
      rows[from] = static_cast<int64_t>(rows_to(from, rank));
      for (size_t i = 0; i < rows_to(from, rank) * row; ++i) {
        expected.push_back(Value(from, 0, first_to(from, rank) * row + i));
      }
    }
    CHECK(came[rank] == rows);
    CHECK(out[rank] == expected);
    CHECK(divisors[rank] == static_cast<int64_t>(active.size()));
  }
  job.End();
}

// A broadcast from an active rank works. With a joined root, all active ranks get the same error and go on.
void TestBroadcastAndBarrier(int size, unsigned mask) {
  Job job(size, 3);
  const auto active = ActiveOf(job.engines.size(), mask);
  for (int root = 0; root < size; ++root) {
    std::vector<std::vector<float>> values(active.size());
    std::vector<std::pair<size_t, Request>> requests;
    for (size_t a = 0; a < active.size(); ++a) {
      values[a].assign(30000, static_cast<float>(active[a]));
      Request broadcast = Allreduce("b", &values[a], nullptr);
      broadcast.kind = Kind::kBroadcast;
      broadcast.root = root;
      broadcast.signature = "collective=broadcast|root_rank=" + std::to_string(root);
      Request barrier;
      barrier.name = "barrier";
      barrier.kind = Kind::kBarrier;
      barrier.signature = "barrier";
      requests.emplace_back(active[a], std::move(broadcast));
      requests.emplace_back(active[a], std::move(barrier));
    }
    const auto statuses = RunWithout(&job, std::move(requests));
    for (size_t a = 0; a < active.size(); ++a) {
      const Status& status = statuses[2 * a];
      CHECK(statuses[2 * a + 1].ok());
      CHECK(status.ok() == ((mask >> root & 1) != 0));
      CHECK(status.message() == statuses[0].message());
      if (!status.ok()) {
        CHECK(status.code() == Code::kFailedPrecondition);
        CHECK(status.message().find("root, rank " + std::to_string(root) + ", has joined") !=
              std::string::npos);
      }
      const float expected = static_cast<float>(status.ok() ? root : static_cast<int>(active[a]));
      CHECK(values[a].front() == expected && values[a].back() == expected);
    }
  }
  job.End();
}

void TestAll() {
  for (int size : {1, 2, 3, 4, 5}) {
    if (kSanitized && size == 4) continue;
    const unsigned all = (1u << size) - 1;
    for (unsigned mask = 1; mask <= all; mask += size > 3 ? 5 : 1) {
      TestReducescatter(size, mask, {7}, 3);
      TestReducescatter(size, mask, {2 * size, 1, 3000}, 5);
      TestRows(size, mask, Kind::kAllgather, 3);
      TestRows(size, mask, Kind::kAlltoall, 20001);
      TestBroadcastAndBarrier(size, mask);
    }
  }
  for (int size : {2, 3, 4}) {
    if (!kSanitized || size == 3) TestReductions(size);
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::OverBothTransports(tfddl::TestAll);
  std::puts("join_data: ok");
  return 0;
}

// Allgather, alltoall and broadcast through the engine and NCCL's double: uneven rows, groups, any dtype.
#include <numeric>

#include "tests/double/control.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

using Floats = std::unique_ptr<GpuTensor<float>>;

// Allocates the outputs of a rank as TensorFlow does, on the GPU of the rank.
decltype(Request::allocate) AllocateOn(const GpuJob& job, size_t rank, std::vector<Floats>* outputs,
                                       std::vector<int64_t> row) {
  return [&job, rank, outputs, row](const std::vector<int64_t>& rows, std::vector<void*>* out) {
    job.Use(rank);
    const size_t ranks = rows.size() / row.size();
    for (size_t i = 0; i < row.size(); ++i) {
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(i * ranks);
      const int64_t total = std::accumulate(begin, begin + static_cast<ptrdiff_t>(ranks), int64_t{0});
      outputs->push_back(
          std::make_unique<GpuTensor<float>>(std::vector<float>(static_cast<size_t>(total * row[i]), -1)));
      out->push_back(outputs->back()->get());
    }
    return Status();
  };
}

// Rank r brings `rows(r)` rows of one tensor of the group and 2 rows of the other one.
void TestAllgather(GpuJob& job, const std::function<int64_t(size_t)>& rows) {
  const size_t size = job.size();
  std::vector<Floats> in;
  std::vector<std::vector<Floats>> out(size);
  Outcomes outcomes(size);
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    Request request = GpuRequest("g", Kind::kAllgather, DataType::kFloat32, outcomes.At(rank));
    for (const int64_t count : {rows(rank), int64_t{2}}) {
      in.push_back(std::make_unique<GpuTensor<float>>(
          Values(rank, request.buffers.size(), static_cast<size_t>(3 * count))));
      request.buffers.push_back({in.back()->get(), nullptr, 3 * count, count, 3});
    }
    request.allocate = AllocateOn(job, rank, &out[rank], {3, 3});
    job.Submit(rank, std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t member = 0; member < 2; ++member) {
    std::vector<float> expected;
    for (size_t rank = 0; rank < size; ++rank) {
      const auto part = Values(rank, member, static_cast<size_t>(3 * (member ? 2 : rows(rank))));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    for (size_t rank = 0; rank < size; ++rank) {
      job.Use(rank);
      CHECK(out[rank][member]->Read(job.streams[rank]) == expected);
    }
  }
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    out[rank].clear();
  }
}

// Rank r sends (r + p) % 3 rows of two elements to rank p.
void TestAlltoall(GpuJob& job) {
  const size_t size = job.size();
  const auto split = [](size_t from, size_t to) { return static_cast<int64_t>((from + to) % 3); };
  std::vector<Floats> in;
  std::vector<std::vector<Floats>> out(size);
  Outcomes outcomes(size);
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    Request request = GpuRequest("a", Kind::kAlltoall, DataType::kFloat32, outcomes.At(rank));
    for (size_t peer = 0; peer < size; ++peer) request.splits.push_back(split(rank, peer));
    const int64_t rows = std::accumulate(request.splits.begin(), request.splits.end(), int64_t{0});
    in.push_back(std::make_unique<GpuTensor<float>>(Values(rank, 0, static_cast<size_t>(2 * rows))));
    request.buffers.push_back({in.back()->get(), nullptr, 2 * rows, rows, 2});
    request.allocate = AllocateOn(job, rank, &out[rank], {2});
    job.Submit(rank, std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    std::vector<float> expected;
    for (size_t from = 0; from < size; ++from) {
      int64_t first = 0;
      for (size_t to = 0; to < rank; ++to) first += split(from, to);
      for (int64_t i = 2 * first; i < 2 * (first + split(from, rank)); ++i)
        expected.push_back(Value(from, 0, static_cast<size_t>(i)));
    }
    job.Use(rank);
    CHECK(out[rank][0]->Read(job.streams[rank]) == expected);
    out[rank].clear();
  }
}

// Collectives that move bytes take any dtype, such as int16, which NCCL cannot reduce.
void TestBroadcast(GpuJob& job) {
  const size_t size = job.size();
  std::vector<std::unique_ptr<GpuTensor<int16_t>>> in, out;
  Outcomes outcomes(size);
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    in.push_back(std::make_unique<GpuTensor<int16_t>>(Bring<int16_t>(rank, 1001)));
    out.push_back(std::make_unique<GpuTensor<int16_t>>(std::vector<int16_t>(1001)));
    Request request = GpuRequest("b", Kind::kBroadcast, DataType::kInt16, outcomes.At(rank));
    request.root = static_cast<int>(size) - 1;
    request.buffers.push_back({in[rank]->get(), out[rank]->get(), 1001});
    job.Submit(rank, std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    CHECK(out[rank]->Read(job.streams[rank]) == Bring<int16_t>(size - 1, 1001));
  }
}

// If one rank cannot allocate, all ranks get an error, no data moves, and the queues go on.
void TestNoMemory(GpuJob& job) {
  const size_t size = job.size();
  std::vector<Floats> in;
  std::vector<std::vector<Floats>> out(size);
  Outcomes outcomes(size);
  const long before = tfddl_fake_calls("ncclAllGather");
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    in.push_back(std::make_unique<GpuTensor<float>>(Values(rank, 0, 4)));
    Request request = GpuRequest("m", Kind::kAllgather, DataType::kFloat32, outcomes.At(rank));
    request.buffers.push_back({in.back()->get(), nullptr, 4, 4, 1});
    request.allocate = AllocateOn(job, rank, &out[rank], {1});
    if (rank == 0) {
      request.allocate = [](const std::vector<int64_t>&, std::vector<void*>*) {
        return Status(Code::kResourceExhausted, "no memory");
      };
    }
    job.Submit(rank, std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.code() == Code::kResourceExhausted);
  CHECK(tfddl_fake_calls("ncclAllGather") == before);
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    out[rank].clear();
  }
  TestBroadcast(job);
}

// While a rank has joined, the other ranks use another communicator. The joined rank may change.
void TestJoin() {
  GpuJob job(3);
  const auto reduce = [&](const std::vector<size_t>& ranks, ReduceOp op, float expected) {
    std::vector<Floats> x;
    Outcomes outcomes(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      job.Use(ranks[i]);
      x.push_back(
          std::make_unique<GpuTensor<float>>(std::vector<float>(5, static_cast<float>(ranks[i] + 1))));
      Request request = GpuRequest("x", Kind::kAllreduce, DataType::kFloat32, outcomes.At(i));
      request.op = op;
      request.buffers.push_back({x[i]->get(), x[i]->get(), 5});
      job.Submit(ranks[i], std::move(request));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (size_t i = 0; i < ranks.size(); ++i) {
      job.Use(ranks[i]);
      for (float value : x[i]->Read(job.streams[ranks[i]])) CHECK(std::abs(value - expected) < 1e-5f);
    }
  };
  std::vector<int32_t> last(3, -1);
  const auto join = [&](size_t rank, std::function<void(const Status&)> done) {
    Request request;
    request.name = kJoinKey;
    request.kind = Kind::kJoin;
    request.buffers.push_back({nullptr, &last[rank], 1});
    request.done = std::move(done);
    job.job->engines[rank]->Submit(std::move(request));
  };
  for (size_t leaver : {2, 0, 2}) {
    const size_t other = leaver == 2 ? 0 : 2;
    const auto sum = static_cast<float>(6 - (leaver + 1));
    reduce({0, 1, 2}, ReduceOp::kSum, 6);
    Outcomes joined(3);
    join(leaver, joined.At(leaver));
    while (!job.job->engines[leaver]->joined()) std::this_thread::yield();
    reduce({std::min<size_t>(1, other), std::max<size_t>(1, other)}, ReduceOp::kSum, sum);
    reduce({std::min<size_t>(1, other), std::max<size_t>(1, other)}, ReduceOp::kAverage, sum / 3);
    join(1, joined.At(1));
    join(other, joined.At(other));
    for (const Status& status : joined.Wait()) CHECK(status.ok());
  }
  job.End();
}

// Rank 1 keeps the communicator that rank 0 has replaced, and it does not destroy it before the end.
void TestRanksThatJoinOneByOne() {
  GpuJob job(3);
  std::vector<int32_t> last(3, -1);
  std::vector<Floats> x;
  Outcomes joined(3);
  for (size_t left : {3, 2, 1}) {
    Outcomes outcomes(left);
    for (size_t rank = 0; rank < left; ++rank) {
      job.Use(rank);
      x.push_back(std::make_unique<GpuTensor<float>>(std::vector<float>(5, 1)));
      Request request = GpuRequest("x", Kind::kAllreduce, DataType::kFloat32, outcomes.At(rank));
      request.buffers.push_back({x.back()->get(), x.back()->get(), 5});
      job.Submit(rank, std::move(request));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    job.Use(0);
    CHECK(x[x.size() - left]->Read(job.streams[0]) == std::vector<float>(5, static_cast<float>(left)));
    Request join;
    join.name = kJoinKey;
    join.kind = Kind::kJoin;
    join.buffers.push_back({nullptr, &last[left - 1], 1});
    join.done = joined.At(left - 1);
    job.job->engines[left - 1]->Submit(std::move(join));
    while (left > 1 && !job.job->engines[left - 1]->joined()) std::this_thread::yield();
  }
  for (const Status& status : joined.Wait()) CHECK(status.ok());
  job.End();
}

void TestAll(int size) {
  GpuJob job(size);
  TestAllgather(job, [](size_t) { return int64_t{4}; });
  TestAllgather(job, [](size_t rank) { return static_cast<int64_t>(1000 * rank); });
  TestAllgather(job, [](size_t) { return int64_t{0}; });
  TestAlltoall(job);
  TestBroadcast(job);
  TestNoMemory(job);
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {1, 2, 3}) tfddl::TestAll(size);
  tfddl::TestJoin();
  tfddl::TestRanksThatJoinOneByOne();
  std::puts("nccl_rows: ok");
  return 0;
}

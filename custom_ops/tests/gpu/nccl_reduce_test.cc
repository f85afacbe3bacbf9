// Compares reductions through the engine and NCCL's double with plain loops.
#include <algorithm>
#include <cmath>

#include "gpu/nccl_support.h"
#include "tests/double/control.h"
#include "tests/gpu/gpu_job.h"

namespace tfddl {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

double Reduced(ReduceOp op, size_t size, size_t i) {
  double result = Brought(0, i);
  for (size_t rank = 1; rank < size; ++rank) {
    const double next = Brought(rank, i);
    if (op == ReduceOp::kMin) {
      result = std::min(result, next);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, next);
    } else {
      result = op == ReduceOp::kProduct ? result * next : result + next;
    }
  }
  return op == ReduceOp::kAverage ? result / static_cast<double>(size) : result;
}

template <typename T>
void CheckClose(const std::vector<T>& values, const std::function<double(size_t)>& expected) {
  const double relative = sizeof(T) == 2 ? 0.01 : 1e-6;
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(std::fabs(NumberOf(values[i]) - expected(i)) <= relative * std::fabs(expected(i)));
  }
}

// A group of three tensors: one with a separate result, one without elements, one in place.
template <typename T>
void TestAllreduce(GpuJob& job, DataType dtype, ReduceOp op, double prescale = 1, double postscale = 1) {
  const size_t size = job.size();
  constexpr size_t kLong = 5001;
  std::vector<std::unique_ptr<GpuTensor<T>>> in, out, both;
  Outcomes outcomes(size);
  tfddl_fake_reset();
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    in.push_back(std::make_unique<GpuTensor<T>>(Bring<T>(rank, 3)));
    out.push_back(std::make_unique<GpuTensor<T>>(std::vector<T>(3)));
    both.push_back(std::make_unique<GpuTensor<T>>(Bring<T>(rank, kLong)));
    Request request = GpuRequest("x", Kind::kAllreduce, dtype, outcomes.At(rank));
    request.op = op;
    request.prescale = prescale;
    request.postscale = postscale;
    request.buffers = {{in[rank]->get(), out[rank]->get(), 3},
                       {nullptr, nullptr, 0},
                       {both[rank]->get(), both[rank]->get(), kLong}};
    job.Submit(rank, std::move(request));
  }
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (size_t rank = 0; rank < size; ++rank) {
    job.Use(rank);
    const auto expected = [&](size_t i) { return Reduced(op, size, i) * prescale * postscale; };
    CheckClose(out[rank]->Read(job.streams[rank]), expected);
    CheckClose(both[rank]->Read(job.streams[rank]), expected);
    const auto kept = in[rank]->Read(job.streams[rank]);
    for (size_t i = 0; i < kept.size(); ++i) CHECK(NumberOf(kept[i]) == Brought(rank, i));
  }
  // One rank calls NCCL as well.
  CHECK(tfddl_fake_calls("ncclAllReduce") == static_cast<long>(2 * size));
  CHECK(tfddl_fake_calls("ncclRedOpCreatePreMulSum") == tfddl_fake_calls("ncclRedOpDestroy"));
}

// Rows that do and do not divide by the number of ranks, and fewer rows than ranks.
template <typename T>
void TestReducescatter(GpuJob& job, DataType dtype, ReduceOp op) {
  const size_t size = job.size();
  const int64_t row = 7;
  for (const int64_t rows :
       {int64_t{0}, int64_t{1}, static_cast<int64_t>(4 * size), static_cast<int64_t>(4 * size + 1)}) {
    std::vector<std::unique_ptr<GpuTensor<T>>> in, out;
    Outcomes outcomes(size);
    for (size_t rank = 0; rank < size; ++rank) {
      job.Use(rank);
      const auto n = static_cast<int>(size), r = static_cast<int>(rank);
      const auto mine = static_cast<size_t>(RowsOf(rows, r, n) * row);
      in.push_back(std::make_unique<GpuTensor<T>>(Bring<T>(rank, static_cast<size_t>(rows * row))));
      out.push_back(std::make_unique<GpuTensor<T>>(std::vector<T>(mine)));
      Request request = GpuRequest("s", Kind::kReducescatter, dtype, outcomes.At(rank));
      request.op = op;
      request.buffers.push_back({in[rank]->get(), out[rank]->get(), rows * row, rows, row});
      job.Submit(rank, std::move(request));
    }
    for (const Status& status : outcomes.Wait()) CHECK(status.ok());
    for (size_t rank = 0; rank < size; ++rank) {
      job.Use(rank);
      const auto first =
          static_cast<size_t>(RowsBegin(rows, static_cast<int>(rank), static_cast<int>(size)) * row);
      CheckClose(out[rank]->Read(job.streams[rank]), [&](size_t i) { return Reduced(op, size, first + i); });
    }
  }
}

template <typename T>
void TestType(GpuJob& job, DataType dtype) {
  for (ReduceOp op : kOps) {
    if (!NcclReduces(op, dtype)) continue;
    TestAllreduce<T>(job, dtype, op);
  }
  TestReducescatter<T>(job, dtype, ReduceOp::kSum);
  if (!NcclReduces(ReduceOp::kAverage, dtype)) return;
  TestAllreduce<T>(job, dtype, ReduceOp::kSum, 0.5, 3);
  TestAllreduce<T>(job, dtype, ReduceOp::kAverage, 2, 0.25);
  TestAllreduce<T>(job, dtype, ReduceOp::kAverage, static_cast<double>(job.size()));  // a sum
  TestReducescatter<T>(job, dtype, ReduceOp::kAverage);
}

// All ranks refuse a request that NCCL cannot run, and name the CPU as the alternative. The next one works.
void TestRefused(GpuJob& job) {
  struct Case {
    ReduceOp op;
    DataType dtype;
    double prescale;
    const char* text;
  };
  const Case cases[] = {
      {ReduceOp::kAdasum, DataType::kFloat32, 1, "there is no op=Adasum of float32"},
      {ReduceOp::kSum, DataType::kInt16, 1, "op=Sum of int16"},
      {ReduceOp::kSum, DataType::kComplex64, 1, "op=Sum of complex64"},
      {ReduceOp::kMin, DataType::kBool, 1, "op=Min of bool"},
      {ReduceOp::kAverage, DataType::kInt32, 1, "op=Average of int32"},
      {ReduceOp::kMin, DataType::kFloat32, 2, "factors with op=Min"},
      {ReduceOp::kSum, DataType::kInt32, 2, "factors for int32"},
      {ReduceOp::kSum, DataType::kFloat16, 1e-6, "a factor of 1e-06 for float16"},
  };
  for (const Case& c : cases) {
    Outcomes outcomes(job.size());
    for (size_t rank = 0; rank < job.size(); ++rank) {
      Request request = GpuRequest("r", Kind::kAllreduce, c.dtype, outcomes.At(rank));
      request.op = c.op;
      request.prescale = c.prescale;
      request.buffers.push_back({nullptr, nullptr, 0});
      job.Submit(rank, std::move(request));
    }
    for (const Status& status : outcomes.Wait()) {
      CHECK(status.code() == Code::kFailedPrecondition);
      CHECK(status.message().find(c.text) != std::string::npos);
      CHECK(status.message().find("tf.device('CPU')") != std::string::npos);
    }
  }
  TestAllreduce<float>(job, DataType::kFloat32, ReduceOp::kSum);
}

void TestAll(int size) {
  GpuJob job(size);
  TestType<Float16>(job, DataType::kFloat16);
  TestType<BFloat16>(job, DataType::kBFloat16);
  TestType<float>(job, DataType::kFloat32);
  TestType<double>(job, DataType::kFloat64);
  TestType<int8_t>(job, DataType::kInt8);
  TestType<int32_t>(job, DataType::kInt32);
  TestType<int64_t>(job, DataType::kInt64);
  TestType<uint8_t>(job, DataType::kUInt8);
  TestType<uint32_t>(job, DataType::kUInt32);
  TestType<uint64_t>(job, DataType::kUInt64);
  TestRefused(job);
  job.End();
}

}  // namespace
}  // namespace tfddl

int main() {
  for (int size : {1, 2, 3}) tfddl::TestAll(size);
  std::puts("nccl_reduce: ok");
  return 0;
}

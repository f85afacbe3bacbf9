// Requests of collectives that split and join rows.
#pragma once

#include <functional>
#include <vector>

#include "tests/engine/job.h"

namespace tfddl {

inline Request Rows(Kind kind, const std::vector<std::vector<float>>& members,
                    const std::vector<int64_t>& row, std::function<void(const Status&)> done) {
  Request request;
  request.name = NameOf(kind);
  request.kind = kind;
  request.signature = NameOf(kind);
  for (size_t i = 0; i < members.size(); ++i) {
    const auto count = static_cast<int64_t>(members[i].size());
    request.buffers.push_back({members[i].data(), nullptr, count, count / row[i], row[i]});
  }
  request.done = std::move(done);
  return request;
}

// Allocates the outputs of an allgather or alltoall in `outputs`.
inline decltype(Request::allocate) AllocateIn(std::vector<std::vector<float>>* outputs,
                                              std::vector<int64_t> row) {
  return [outputs, row](const std::vector<int64_t>& rows, std::vector<void*>* out) {
    const size_t ranks = rows.size() / row.size();
    outputs->resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      int64_t total = 0;
      for (size_t rank = 0; rank < ranks; ++rank) total += rows[i * ranks + rank];
      (*outputs)[i].resize(static_cast<size_t>(total * row[i]));
      out->push_back((*outputs)[i].data());
    }
    return Status();
  };
}

}  // namespace tfddl

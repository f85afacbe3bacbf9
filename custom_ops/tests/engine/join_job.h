// A job some of whose ranks have joined.
#pragma once

#include <utility>
#include <vector>

#include "tests/engine/job.h"

namespace tfddl {

inline Request Join(int32_t* last, std::function<void(const Status&)> done,
                    AverageOver over = AverageOver::kSize) {
  Request request;
  request.name = kJoinKey;
  request.kind = Kind::kJoin;
  request.average_over = over;
  request.buffers.push_back({nullptr, last, 1});
  request.done = std::move(done);
  return request;
}

inline void JoinAll(Job* job, AverageOver over = AverageOver::kSize) {
  const size_t ranks = job->engines.size();
  std::vector<int32_t> last(ranks, -1);
  Outcomes outcomes(ranks);
  for (size_t rank = 0; rank < ranks; ++rank)
    job->engines[rank]->Submit(Join(&last[rank], outcomes.At(rank), over));
  for (const Status& status : outcomes.Wait()) CHECK(status.ok());
  for (int32_t other : last) CHECK(other == last[0] && other >= 0 && other < static_cast<int32_t>(ranks));
}

// Runs `requests` on the ranks that have one, while the others have joined; then all join.
inline std::vector<Status> RunWithout(Job* job, std::vector<std::pair<size_t, Request>> requests,
                                      AverageOver over = AverageOver::kSize) {
  const size_t ranks = job->engines.size();
  std::vector<int32_t> last(ranks, -1);
  Outcomes joins(ranks), runs(requests.size());
  std::vector<bool> active(ranks);
  for (auto& [rank, request] : requests) active[rank] = true;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (!active[rank]) job->engines[rank]->Submit(Join(&last[rank], joins.At(rank), over));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].second.done = runs.At(i);
    job->engines[requests[i].first]->Submit(std::move(requests[i].second));
  }
  const std::vector<Status> statuses = runs.Wait();
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (active[rank]) job->engines[rank]->Submit(Join(&last[rank], joins.At(rank), over));
  }
  for (const Status& status : joins.Wait()) CHECK(status.ok());
  for (int32_t other : last) CHECK(other == last[0] && active[static_cast<size_t>(other)]);
  return statuses;
}

inline void CheckOk(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) CHECK(status.ok());
}

}  // namespace tfddl

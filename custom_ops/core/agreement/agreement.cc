#include "core/agreement/agreement.h"

#include <algorithm>
#include <utility>

#include "base/signature.h"
#include "base/wire.h"

namespace tfddl {
namespace {

bool Bit(const std::vector<uint64_t>& bits, size_t i) { return (bits[i / 64] >> (i % 64)) & 1; }
void SetBit(std::vector<uint64_t>* bits, size_t i) { (*bits)[i / 64] |= uint64_t{1} << (i % 64); }

}  // namespace

Agreement::Agreement(int rank, int size, size_t capacity, std::vector<int> members)
    : rank_(rank),
      size_(size),
      capacity_(capacity),
      members_(std::move(members)),
      had_joined_(VoteRecord(0, static_cast<size_t>(size)).joined) {}

void Agreement::Submit(const std::string& name, const std::string& signature, int tickets) {
  pending_[name] = {signature, tickets, false};
  fresh_ = true;
}

void Agreement::Join(AverageOver over) {
  joined_ = fresh_ = true;
  average_over_ = over;
}

void Agreement::Withdraw(const std::string& name) { pending_.erase(name); }

void Agreement::RequestShutdown() { leaving_ = true; }

bool Agreement::ShouldEnter(const Vote& vote) const {
  if (closed_ || vote.entered()) return false;
  if (leaving_ || shutdown_noticed_ || vote.noticed_departing() != VoteRecord::kNobody) return true;
  return (joined_ || !pending_.empty()) && (fresh_ || vote.noticed());
}

VoteRecord Agreement::Enter(const Vote& vote) {
  fresh_ = false;
  VoteRecord record(plan_.size(), static_cast<size_t>(size_));
  record.number = vote_number_;
  if (joined_) {
    SetBit(&record.joined, static_cast<size_t>(rank_));
    if (average_over_ == AverageOver::kActive) record.over_active = record.joined;
    for (auto* bits : {&record.ready_all, &record.same_all})
      std::fill(bits->begin(), bits->end(), ~uint64_t{0});
  }
  // Passes on a shutdown that this vote's messages told of: a member that hears only from this one may be
  // idle and would not answer.
  record.departing = std::min(leaving_ ? rank_ : VoteRecord::kNobody, vote.noticed_departing());
  if (record.departing != VoteRecord::kNobody) record.flags |= VoteRecord::kShutdown;
  for (auto& [name, pending] : pending_) {
    pending.voted = true;
    const auto it = index_.find(name);
    if (it == index_.end()) {
      record.flags |= VoteRecord::kNewNames;
      continue;
    }
    SetBit(&record.ready_all, it->second);
    SetBit(&record.ready_any, it->second);
    if (plan_[it->second].signature == pending.signature) SetBit(&record.same_all, it->second);
  }
  return record;
}

bool Agreement::NeedsExchange(const VoteRecord& outcome) const {
  if (outcome.flags & VoteRecord::kNewNames) return true;
  for (size_t i = 0; i < outcome.ready_all.size(); ++i) {
    if (outcome.ready_all[i] & ~outcome.same_all[i]) return true;
  }
  return false;
}

std::string Agreement::ExchangeRecord(const VoteRecord& outcome) const {
  WireWriter writer;
  for (const auto& [name, pending] : pending_) {
    if (!pending.voted) continue;
    const auto it = index_.find(name);
    const bool disputed =
        it != index_.end() && Bit(outcome.ready_all, it->second) && !Bit(outcome.same_all, it->second);
    if (it != index_.end() && !disputed) continue;
    writer.String(name);
    writer.String(pending.signature);
    writer.Int(pending.tickets);
  }
  return writer.bytes();
}

std::vector<Agreement::Announced> Agreement::Merge(const std::vector<std::string>& records) const {
  std::vector<Announced> merged;
  std::unordered_map<std::string, size_t> position;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    WireReader reader(records[rank]);
    while (!reader.done()) {
      const std::string name = reader.String();
      const auto [it, inserted] = position.emplace(name, merged.size());
      const std::string signature = reader.String();
      const int tickets = static_cast<int>(reader.Int());
      if (inserted) merged.push_back({name, std::vector<std::string>(size_), tickets});
      merged[it->second].signatures[rank] = signature;
    }
  }
  return merged;
}

Decision Agreement::Schedule(Entry* entry) {
  Decision decision{entry->name, next_ticket_, ""};
  next_ticket_ += static_cast<uint64_t>(entry->tickets);
  entry->last_run = boundary_;
  pending_.erase(entry->name);
  return decision;
}

size_t Agreement::Append(const std::string& name, const std::string& signature, int tickets) {
  const auto [it, inserted] = index_.emplace(name, plan_.size());
  if (inserted) plan_.push_back({name, signature, tickets, boundary_});
  return it->second;
}

void Agreement::CountJoined(const VoteRecord& outcome, Boundary* boundary) {
  std::vector<int> joined[2];  // by the divisor they ask for
  int last = VoteRecord::kNobody;
  for (int rank = 0; rank < size_; ++rank) {
    const auto bit = static_cast<size_t>(rank);
    if (!Bit(outcome.joined, bit)) {
      boundary->active.push_back(rank);
      continue;
    }
    joined[Bit(outcome.over_active, bit)].push_back(members_.empty() ? rank : members_[bit]);
    if (!Bit(had_joined_, bit)) last = rank;
  }
  boundary->average_over = joined[1].empty() ? AverageOver::kSize : AverageOver::kActive;
  had_joined_ = outcome.joined;
  if (!joined[0].empty() && !joined[1].empty()) {
    boundary->join_error = DescribeDivisors(joined[0], joined[1]);
  } else if (boundary->active.empty()) {
    boundary->last_joined = last;
  } else {
    return;
  }
  std::fill(had_joined_.begin(), had_joined_.end(), 0);
  if (Bit(outcome.joined, static_cast<size_t>(rank_))) joined_ = false;
}

void Agreement::Decide(const Announced& announced, Boundary* boundary) {
  const auto& signatures = announced.signatures;
  const auto first = std::find_if(signatures.begin(), signatures.end(), [](auto& s) { return !s.empty(); });
  Entry& entry = plan_[Append(announced.name, *first, announced.tickets)];
  if (!boundary->join_error.empty()) return;
  bool equal = true;
  for (int rank : boundary->active) {
    const auto& signature = signatures[static_cast<size_t>(rank)];
    if (signature.empty()) return;  // it waits, an error too is for all members at once
    equal &= signature == *first;
  }
  if (equal) {
    entry.signature = *first;
    entry.tickets = announced.tickets;
    boundary->decisions.push_back(Schedule(&entry));
  } else {
    pending_.erase(announced.name);
    boundary->decisions.push_back(
        {announced.name, 0, DescribeMismatch(announced.name, signatures, members_)});
  }
}

Boundary Agreement::Conclude(const VoteRecord& outcome, const std::vector<std::string>& records) {
  ++vote_number_;
  ++boundary_;
  Boundary boundary;
  CountJoined(outcome, &boundary);
  // If all have joined, all bits are set, but nothing runs. If the joined members disagree, the join is void.
  const bool runs = !boundary.active.empty() && boundary.join_error.empty();
  for (size_t i = 0; runs && i < plan_.size(); ++i) {
    if (Bit(outcome.ready_all, i) && Bit(outcome.same_all, i))
      boundary.decisions.push_back(Schedule(&plan_[i]));
  }
  for (const Announced& announced : Merge(records)) Decide(announced, &boundary);
  if (outcome.flags & VoteRecord::kShutdown) {
    closed_ = boundary.closed = true;
    departing_ = boundary.departing = outcome.departing;
  }
  Evict(outcome);
  return boundary;
}

// All members evict the same entries, because the choice depends on agreed facts alone. An entry that is
// ready on some member stays. A name that a member submits to the plan after this vote began may become new
// again.
void Agreement::Evict(const VoteRecord& outcome) {
  if (plan_.size() <= capacity_) return;
  std::vector<size_t> candidates;
  for (size_t i = 0; i < plan_.size(); ++i) {
    const bool in_use = plan_[i].last_run == boundary_ ||  // ran or was appended just now
                        (i < 64 * outcome.ready_any.size() && Bit(outcome.ready_any, i));
    if (!in_use) candidates.push_back(i);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](size_t a, size_t b) { return plan_[a].last_run < plan_[b].last_run; });
  candidates.resize(std::min(candidates.size(), plan_.size() - capacity_));
  std::vector<bool> evicted(plan_.size());
  for (size_t i : candidates) evicted[i] = true;
  std::vector<Entry> kept;
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (!evicted[i]) kept.push_back(std::move(plan_[i]));
  }
  plan_ = std::move(kept);
  index_.clear();
  for (size_t i = 0; i < plan_.size(); ++i) index_[plan_[i].name] = i;
}

}  // namespace tfddl

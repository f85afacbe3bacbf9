#include "core/agreement.h"

#include <algorithm>
#include <utility>

#include "core/signature.h"
#include "core/wire.h"

namespace tfddl {
namespace {

bool Bit(const std::vector<uint64_t>& bits, size_t i) { return (bits[i / 64] >> (i % 64)) & 1; }
void SetBit(std::vector<uint64_t>* bits, size_t i) { (*bits)[i / 64] |= uint64_t{1} << (i % 64); }

}  // namespace

Agreement::Agreement(int rank, int size, size_t capacity, std::vector<int> members)
    : rank_(rank), size_(size), capacity_(capacity), members_(std::move(members)) {}

void Agreement::Submit(const std::string& name, const std::string& signature, int tickets) {
  pending_[name] = {signature, tickets, false};
  fresh_ = true;
}

void Agreement::Withdraw(const std::string& name) { pending_.erase(name); }

void Agreement::RequestShutdown() { leaving_ = true; }

bool Agreement::ShouldEnter(const Vote& vote) const {
  if (closed_ || vote.entered()) return false;
  if (leaving_ || shutdown_noticed_ || vote.noticed_departing() != VoteRecord::kNobody) return true;
  return !pending_.empty() && (fresh_ || vote.noticed());
}

VoteRecord Agreement::Enter(const Vote& vote) {
  fresh_ = false;
  VoteRecord record(plan_.size());
  record.number = vote_number_;
  // Heard of a leaver in this vote: said on, since a member that hears only from us may have nothing to run
  // and would not answer.
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
      if (inserted) merged.push_back({name, std::vector<std::string>(size_)});
      merged[it->second].signatures[rank] = reader.String();
    }
  }
  return merged;
}

Decision Agreement::Run(Entry* entry) {
  const auto it = pending_.find(entry->name);
  Decision decision{entry->name, next_ticket_, ""};
  next_ticket_ += static_cast<uint64_t>(it->second.tickets);
  entry->last_run = boundary_;
  pending_.erase(it);
  return decision;
}

size_t Agreement::Append(const std::string& name, const std::string& signature) {
  const auto [it, inserted] = index_.emplace(name, plan_.size());
  if (inserted) plan_.push_back({name, signature, boundary_});
  return it->second;
}

void Agreement::Decide(const Announced& announced, Boundary* boundary) {
  const auto& signatures = announced.signatures;
  const auto first = std::find_if(signatures.begin(), signatures.end(), [](auto& s) { return !s.empty(); });
  Entry& entry = plan_[Append(announced.name, *first)];
  if (std::any_of(signatures.begin(), signatures.end(), [](auto& s) { return s.empty(); })) {
    return;  // not submitted everywhere: it waits, an error too is for all members at once
  }
  if (std::all_of(signatures.begin(), signatures.end(), [&](auto& s) { return s == *first; })) {
    entry.signature = *first;
    boundary->decisions.push_back(Run(&entry));
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
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (Bit(outcome.ready_all, i) && Bit(outcome.same_all, i)) boundary.decisions.push_back(Run(&plan_[i]));
  }
  for (const Announced& announced : Merge(records)) Decide(announced, &boundary);
  if (outcome.flags & VoteRecord::kShutdown) {
    closed_ = boundary.closed = true;
    departing_ = boundary.departing = outcome.departing;
  }
  Evict(outcome);
  return boundary;
}

// All members evict the same entries: the choice rests on agreed facts alone. An entry that somebody
// is waiting for stays; one that somebody submitted since this vote began is new to the plan again.
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

#include "core/agreement/voter.h"

namespace tfddl {
namespace {

constexpr int kVoteTag = 0;
constexpr int kExchangeTag = 1;  // and 2

}  // namespace

Voter::Voter(Transport* transport, Agreement* agreement)
    : transport_(transport), agreement_(agreement), vote_(transport->rank(), transport->size()) {
  PostReceives();
}

// The receives of the next vote are posted at a boundary: the first message of a peer is the notice that the
// peer has opened the vote. The length of a record follows from the plan at the boundary.
void Voter::PostReceives() {
  const auto& steps = vote_.steps();
  const size_t bytes =
      VoteRecord::EncodedSize(agreement_->plan_size(), static_cast<size_t>(transport_->size()));
  buffers_.assign(steps.size(), std::string(bytes, '\0'));
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].receive) continue;
    receives_.emplace_back(i, transport_->Receive(steps[i].peer, kVoteTag, buffers_[i].data(), bytes));
  }
}

void Voter::Receive() {
  for (auto it = receives_.begin(); it != receives_.end();) {
    if (transport_->Test(it->second)) {
      vote_.Receive(it->first, VoteRecord::Decode(buffers_[it->first]));
      it = receives_.erase(it);
    } else {
      ++it;
    }
  }
}

void Voter::Send() {
  while (auto message = vote_.NextMessage()) {
    Outgoing& out = outgoing_.emplace_back(Outgoing{message->record.Encode(), Transport::kNothing});
    out.handle = transport_->Send(message->peer, kVoteTag, out.bytes.data(), out.bytes.size());
  }
  outgoing_.remove_if([this](Outgoing& out) { return transport_->Test(out.handle); });
}

std::optional<Boundary> Voter::Progress(bool* moved) {
  Receive();
  if (!exchange_ && agreement_->ShouldEnter(vote_)) {
    vote_.Enter(agreement_->Enter(vote_));
    *moved = true;
  }
  Send();
  if (exchange_) {
    if (!exchange_->Poll()) return std::nullopt;
    *moved = true;
    return Conclude(exchange_->records());
  }
  if (!vote_.complete()) return std::nullopt;
  *moved = true;
  outcome_ = vote_.Take();
  if (!agreement_->NeedsExchange(*outcome_)) return Conclude({});
  exchange_.emplace(transport_, kExchangeTag, agreement_->ExchangeRecord(*outcome_));
  return std::nullopt;
}

Boundary Voter::Conclude(const std::vector<std::string>& records) {
  Boundary boundary = agreement_->Conclude(*outcome_, records);
  outcome_.reset();
  exchange_.reset();
  if (!boundary.closed) PostReceives();
  return boundary;
}

bool Voter::idle() const {
  return !vote_.entered() && !exchange_ && outgoing_.empty() && !agreement_->ShouldEnter(vote_);
}

}  // namespace tfddl

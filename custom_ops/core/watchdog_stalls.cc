// What the watchdog makes of requests that wait: it asks all ranks what they wait for, and says so.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/watchdog.h"
#include "core/wire.h"

namespace tfddl {
namespace {

constexpr int64_t kCertainMicros =
    10000000;                               // ranks that wait for different things with a note do so for ever
constexpr int64_t kAnswerMicros = 1000000;  // a rank that has not answered by then is silent
constexpr size_t kSituationBytes = 1800;    // of a letter

std::string Seconds(int64_t micros) { return std::to_string(micros / 1000000) + " s"; }

void Print(const std::string& text) { std::fprintf(stderr, "tfddl: %s\n", text.c_str()); }

}  // namespace

Situation Watchdog::Mine() const {
  Situation mine;
  mine.waiting = engine_->Waiting();
  mine.still_us = NowMicros() - engine_->moved_us();
  if (const auto last = engine_->recorder().Last()) {
    mine.last = "its last collective was '" + last->name.substr(0, 200) + "' (" + last->what + ") " +
                Seconds(NowMicros() - last->time_us) + " ago";
  } else {
    mine.last = "it has not called any collective yet";
  }
  std::lock_guard<std::mutex> lock(mutex_);
  mine.leaving = leaving_us_ != 0;
  return mine;
}

std::string Watchdog::Answer(const std::string& question) const {
  WireReader reader(question);
  WireWriter writer;
  writer.Int(reader.Int());
  const std::string key = reader.String();
  Situation mine = Mine();
  // First in line, so that a list that is cut short still tells whether it is there.
  std::stable_partition(mine.waiting.begin(), mine.waiting.end(), [&](auto& it) { return it.key == key; });
  writer.String(mine.Encode(kSituationBytes));
  return writer.bytes();
}

void Watchdog::Hear(int peer, const std::string& answer) {
  WireReader reader(answer);
  if (!inquiry_ || reader.Int() != inquiry_->number) return;
  inquiry_->answers[static_cast<size_t>(peer)] = Situation::Decode(reader.String());
}

void Watchdog::LookForStalls() {
  const int64_t now = NowMicros();
  int64_t ask_leaving_us;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ask_leaving_us = ask_leaving_us_;
    if (now > ask_leaving_us) ask_leaving_us_ = 0;
  }
  if (ask_leaving_us != 0 && now > ask_leaving_us) return Ask(Cause::kShutdown, "", now);
  const auto oldest = engine_->Oldest();
  if (!oldest) return;
  const auto& [key, submitted_us] = *oldest;
  const double waited_s = static_cast<double>(now - submitted_us) * 1e-6;
  if (waited_s > options_.limit_s) return Ask(Cause::kLimit, key, submitted_us);
  if (waited_s > options_.warning_s && warned_ != *oldest) {
    warned_ = *oldest;
    return Ask(Cause::kSlow, key, submitted_us);
  }
  // Where all ranks wait, rank 0 does too, so that it can speak for all.
  const bool still = now - engine_->moved_us() > still_us_;
  if (transport_->rank() != 0 || !still || now < next_comparison_us_) return;
  next_comparison_us_ = now + std::clamp<int64_t>(still_us_ / 4, kAnswerMicros / 4, kAnswerMicros);
  Ask(Cause::kDifferent, key, submitted_us);
}

void Watchdog::Ask(Cause cause, const std::string& key, int64_t submitted_us) {
  inquiry_ = Inquiry{cause, key, submitted_us, ++inquiries_, NowMicros(), Situations(inboxes_.size())};
  WireWriter writer;
  writer.Int(inquiry_->number);
  writer.String(key.substr(0, kSituationBytes));
  SendToAll(Type::kQuestion, writer.bytes());
}

void Watchdog::ConcludeInquiry() {
  const auto me = static_cast<size_t>(transport_->rank());
  inquiry_->answers[me] = Mine();
  const auto& answers = inquiry_->answers;
  const bool complete =
      std::all_of(answers.begin(), answers.end(), [](auto& answer) { return answer.has_value(); });
  if (!complete && NowMicros() - inquiry_->begun_us < kAnswerMicros) return;
  const Inquiry inquiry = std::move(*inquiry_);
  inquiry_.reset();
  if (inquiry.cause == Cause::kShutdown) return ReportShutdown(inquiry);
  if (!inquiry.answers[me]->Has(inquiry.key)) return;  // it came through meanwhile
  if (inquiry.cause == Cause::kDifferent) return ReportDifferent(inquiry);
  ReportStall(inquiry);
}

void Watchdog::ReportDifferent(const Inquiry& inquiry) {
  if (!WaitForDifferent(inquiry.answers, still_us_)) return;
  const std::string report =
      "the ranks wait for different collectives, none of which can run: " + Describe(inquiry.answers) + ".";
  if (HasNote(inquiry.answers) && WaitForDifferent(inquiry.answers, kCertainMicros)) {
    engine_->Fail("Stopped: " + report);
    return;
  }
  const auto subject = std::make_pair(inquiry.key, inquiry.submitted_us);
  if (std::exchange(different_, subject) == subject) return;
  Print(report +
        " Ranks must run the same collectives, the same number of times. The job goes on waiting, in case "
        "another thread submits what is missing, until TFDDL_STALL_LIMIT=" +
        std::to_string(static_cast<int64_t>(options_.limit_s)) + " seconds.");
}

void Watchdog::ReportStall(const Inquiry& inquiry) {
  std::string missing = DescribeMissing(inquiry.answers, inquiry.key);
  if (missing.empty()) missing = "all ranks have submitted it, the transfer itself does not advance";
  const std::string report = Me() + " has waited " + Seconds(NowMicros() - inquiry.submitted_us) + " for '" +
                             inquiry.key + "'; " + missing + ". All ranks: " + Describe(inquiry.answers) +
                             ".";
  if (inquiry.cause == Cause::kLimit) {
    engine_->Fail("Stalled: " + report + " The limit is TFDDL_STALL_LIMIT=" +
                  std::to_string(static_cast<int64_t>(options_.limit_s)) + " seconds.");
    return;
  }
  for (int rank = 0; rank < transport_->rank(); ++rank) {  // the lowest rank that waits for it speaks for all
    const auto& answer = inquiry.answers[static_cast<size_t>(rank)];
    if (answer && answer->Has(inquiry.key)) return;
  }
  Print(report + " Ranks must run the same collectives; the job goes on waiting.");
}

void Watchdog::ReportShutdown(const Inquiry& inquiry) {
  const std::string report = Describe(inquiry.answers);
  std::lock_guard<std::mutex> lock(mutex_);
  shutdown_report_ = report;
}

}  // namespace tfddl

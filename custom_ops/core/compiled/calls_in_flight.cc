#include "core/compiled/calls_in_flight.h"

#include "core/engine/engine.h"

namespace tfddl {
namespace {

bool IsOf(const std::weak_ptr<Engine>& held, const std::shared_ptr<Engine>& engine) {
  return !held.owner_before(engine) && !engine.owner_before(held);
}

}  // namespace

void Outcome::SetEnded(const Status& status) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_ = status;
  changed_.notify_all();
}

void Outcome::SetLaunched(std::shared_ptr<DeviceEvent> end) {
  std::lock_guard<std::mutex> lock(mutex_);
  end_ = std::move(end);
  changed_.notify_all();
}

bool Outcome::ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_.has_value();
}

bool Outcome::launched_or_ended() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_ || end_;
}

Status Outcome::Wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return status_.has_value(); });
  return *status_;
}

std::pair<Status, std::shared_ptr<DeviceEvent>> Outcome::WaitForLaunch() const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return status_ || end_; });
  return {status_.value_or(Status()), end_};
}

CallsInFlight& CallsInFlight::Global() {
  static auto* global = new CallsInFlight;  // leaked: programs may run until the process ends
  return *global;
}

void CallsInFlight::Add(std::shared_ptr<StartedCall> started) {
  std::lock_guard<std::mutex> lock(mutex_);
  started_.remove_if([&](const std::shared_ptr<StartedCall>& old) {
    const bool same = old->key == started->key && IsOf(old->engine, started->engine.lock());
    return old->engine.expired() || (same && old->outcome->ended());
  });
  started_.push_back(std::move(started));
}

std::shared_ptr<StartedCall> CallsInFlight::Take(const std::shared_ptr<Engine>& engine,
                                                 std::optional<int64_t> step, const std::string& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = started_.end();
  for (auto it = started_.begin(); it != started_.end(); ++it) {
    if ((*it)->step != step.value_or((*it)->step) || (*it)->key != key || !IsOf((*it)->engine, engine))
      continue;
    found = it;
    if (step || (*it)->thread == std::this_thread::get_id()) break;
  }
  if (found == started_.end()) return nullptr;
  auto started = std::move(*found);
  started_.erase(found);
  return started;
}

int64_t CallsInFlight::StepOfThread() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& started : started_) {
    if (started->thread == std::this_thread::get_id() && !started->engine.expired()) return started->step;
  }
  return 0;
}

std::vector<std::shared_ptr<StartedCall>> CallsInFlight::TakeStep(int64_t step) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<StartedCall>> taken;
  for (auto it = started_.begin(); it != started_.end();) {
    if ((*it)->step != step) {
      ++it;
      continue;
    }
    taken.push_back(std::move(*it));
    it = started_.erase(it);
  }
  return taken;
}

void CallsInFlight::WaitForLast(const std::shared_ptr<Engine>& engine, const std::string& key,
                                std::shared_ptr<Outcome> next) {
  std::shared_ptr<Outcome> last;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last_.remove_if([&](const Last& old) {
      if (old.key == key && IsOf(old.engine, engine)) last = old.outcome;
      return old.engine.expired() || old.outcome == last;
    });
    last_.push_back({engine, key, std::move(next)});
  }
  if (!last) return;
  engine->Help([&] { return last->ended(); });
  last->Wait();
}

}  // namespace tfddl

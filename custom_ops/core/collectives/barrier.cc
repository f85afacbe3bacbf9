#include "core/collectives/collective.h"

namespace tfddl {
namespace {

// Once all members have agreed on it, all have come to it.
class Barrier : public Collective {
 public:
  bool Poll() override { return true; }
};

}  // namespace

std::unique_ptr<Collective> MakeBarrier() { return std::make_unique<Barrier>(); }

}  // namespace tfddl

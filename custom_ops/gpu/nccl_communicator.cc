#include "gpu/nccl_communicator.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/wire.h"

namespace tfddl {
namespace {

bool SharingAllowed() {
  const char* value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value && std::string(value) == "1";
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclDevice> device, Lane lane, std::string objection,
                                   NcclEnds* ends)
    : device_(std::move(device)),
      participants_(*lane.participants),
      index_(lane.transport->rank()),
      ends_(ends) {
  exchange_.emplace(lane.transport, lane.tag, Introduce(objection));
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_) ends_->Destroy(device_, comm_);
}

std::string NcclCommunicator::Introduce(const std::string& objection) {
  WireWriter writer;
  NcclUniqueId id = {};
  std::string problem = objection;
  if (problem.empty() && index_ == 0) {
    const int code = device_->api->ncclGetUniqueId(&id);
    if (code != kNcclSuccess)
      problem = std::string("ncclGetUniqueId: ") + device_->api->ncclGetErrorString(code);
  }
  writer.String(problem);
  writer.String(device_ ? device_->uuid : "");
  writer.Int(device_ ? device_->api->nccl_version : 0);
  writer.String(std::string(id.internal, sizeof id.internal));
  return writer.bytes();
}

bool NcclCommunicator::Poll() {
  if (!exchange_) return !Busy();
  if (!exchange_->Poll()) return false;
  std::vector<Member> members;
  for (const std::string& record : exchange_->records()) {
    WireReader reader(record);
    Member member;
    member.objection = reader.String();
    member.uuid = reader.String();
    member.version = reader.Int();
    member.id = reader.String();
    members.push_back(std::move(member));
  }
  exchange_.reset();
  refusal_ = Refusal(members);
  if (!refusal_.empty()) return true;
  const WithContext current(*device_);
  NcclUniqueId id;
  std::memcpy(id.internal, members[0].id.data(), sizeof id.internal);
  NcclConfig config;
  const auto size = static_cast<int>(members.size());
  device_->api->CheckNccl(device_->api->ncclCommInitRankConfig(&comm_, size, id, index_, &config),
                          "ncclCommInitRankConfig");
  return !Busy();
}

std::string NcclCommunicator::Refusal(const std::vector<Member>& members) const {
  for (size_t index = 0; index < members.size(); ++index) {
    const Member& member = members[index];
    if (!member.objection.empty()) return "rank " + Rank(index) + ": " + member.objection;
    if (member.version != members[0].version) {
      return "the ranks have different versions of NCCL: rank " + Rank(0) + " " +
             NcclVersionText(static_cast<int>(members[0].version)) + ", rank " + Rank(index) + " " +
             NcclVersionText(static_cast<int>(member.version)) + "; install the same one everywhere";
    }
    for (size_t other = 0; other < index && !SharingAllowed(); ++other) {
      if (members[other].uuid != member.uuid) continue;
      return "ranks " + Rank(other) + " and " + Rank(index) +
             " use the same GPU; give each process one of its own by hvd.set_visible_gpu(), right after "
             "hvd.init()";
    }
  }
  return "";
}

std::string NcclCommunicator::Rank(size_t index) const {
  return std::to_string(participants_.members[static_cast<size_t>(participants_.ranks[index])]);
}

bool NcclCommunicator::Busy() const {
  int state = kNcclSuccess;
  device_->api->CheckNccl(device_->api->ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
  device_->api->CheckNccl(state, "asynchronous work");
  return state == kNcclInProgress;
}

void NcclCommunicator::Abort() {
  if (comm_) ends_->Abort(device_, std::exchange(comm_, nullptr));
}

}  // namespace tfddl

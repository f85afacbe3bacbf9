#include "core/engine/gather.h"

#include <future>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/signature.h"

namespace tfddl {
namespace {

// Held by the request, which may outlive the call when the job fails.
struct Gathering {
  std::string mine;
  std::vector<int64_t> lengths;  // by rank
  std::vector<char> all;
  std::promise<Status> done;
};

}  // namespace

std::vector<std::string> GatherTexts(Engine* engine, const std::string& name, const std::string& mine) {
  auto gathering = std::make_shared<Gathering>();
  gathering->mine = mine;
  const auto bytes = static_cast<int64_t>(mine.size());
  Request request;
  request.name = name;
  request.kind = Kind::kAllgather;
  request.dtype = DataType::kUInt8;
  request.signature = Signature(Kind::kAllgather).AddTensor(DataType::kUInt8, {-1}).text();
  request.buffers.push_back({gathering->mine.data(), nullptr, bytes, bytes, 1});
  request.allocate = [gathering](const std::vector<int64_t>& rows, std::vector<void*>* out) {
    gathering->lengths = rows;
    gathering->all.resize(static_cast<size_t>(std::accumulate(rows.begin(), rows.end(), int64_t{0})));
    out->push_back(gathering->all.data());
    return Status();
  };
  request.done = [gathering](const Status& status) { gathering->done.set_value(status); };
  request.keep_alive = gathering;
  engine->Submit(std::move(request));
  const Status status = gathering->done.get_future().get();
  if (!status.ok()) throw std::runtime_error(status.message());
  std::vector<std::string> texts;
  const char* next = gathering->all.data();
  for (int64_t length : gathering->lengths) {
    texts.emplace_back(next, static_cast<size_t>(length));
    next += length;
  }
  return texts;
}

}  // namespace tfddl

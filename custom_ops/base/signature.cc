#include "base/signature.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tfddl {
namespace {

constexpr char kSeparator = '|';
constexpr size_t kMaxFieldsShown = 3;

// Fields whose value is shown without the name.
struct Description {
  std::string_view name;
  const char* noun;     // in the advice, "the same <noun>"
  const char* missing;  // shown for a rank that lacks the field
};
constexpr Description kDescriptions[] = {
    {kDeviceField, "device", "no device"},
    {kCollectiveField, "collective", "no collective"},
    {kTensorField, "number of tensors", "no such tensor"},
    {kBucketsField, "gradients", "1 bucket"},
    {"gradients", "gradients", "no gradients"},
    {"group", "kinds of tensors in the group", "all of one dtype"},
    {"slices", "kind of tensor (dense, or tf.IndexedSlices)", "a dense tensor"},
};

const Description* FindDescription(std::string_view name) {
  for (const Description& description : kDescriptions) {
    if (description.name == name) return &description;
  }
  return nullptr;
}

// The name of a field, and its number among the fields of this name.
using Key = std::pair<std::string_view, int>;

// The signature of one rank.
struct Side {
  int rank;
  std::vector<Key> keys;  // in the order of the signature
  std::map<Key, std::string_view> values;

  std::optional<std::string_view> ValueOf(const Key& key) const {
    const auto it = values.find(key);
    return it == values.end() ? std::nullopt : std::make_optional(it->second);
  }
};

Side Parse(int rank, std::string_view signature) {
  Side side{rank, {}, {}};
  std::map<std::string_view, int> numbers;
  while (!signature.empty()) {
    const std::string_view text = signature.substr(0, signature.find(kSeparator));
    signature.remove_prefix(std::min(text.size() + 1, signature.size()));
    const size_t equals = text.find('=');
    const bool named = equals != std::string_view::npos;
    const std::string_view name = named ? text.substr(0, equals) : "arguments";
    const Key key = {name, numbers[name]++};
    side.keys.push_back(key);
    side.values[key] = named ? text.substr(equals + 1) : text;
  }
  return side;
}

// The fields that are not equal on all sides, tensors last. Different collectives have nothing else to
// compare.
std::vector<Key> DifferingKeys(const std::vector<Side>& sides) {
  std::vector<Key> differing;
  std::set<Key> seen;
  for (const Side& side : sides) {
    for (const Key& key : side.keys) {
      if (!seen.insert(key).second) continue;
      const auto value = side.ValueOf(key);
      if (std::all_of(sides.begin(), sides.end(), [&](auto& other) { return other.ValueOf(key) == value; }))
        continue;
      if (key.first == kCollectiveField) return {key};
      differing.push_back(key);
    }
  }
  std::stable_partition(differing.begin(), differing.end(),
                        [](auto& key) { return key.first != kTensorField; });
  return differing;
}

std::string Join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i ? separator : "") + parts[i];
  return text;
}

// "rank 1" or "ranks 0, 2"
std::string DescribeRanks(const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  for (int rank : ranks) numbers.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + Join(numbers, ", ");
}

std::string DescribeSide(const Side& side, const std::vector<Key>& differing) {
  std::vector<std::string> shown;
  for (const Key& key : differing) {
    if (shown.size() == kMaxFieldsShown) {
      shown.push_back("...");
      break;
    }
    const Description* description = FindDescription(key.first);
    const auto value = side.ValueOf(key);
    if (description) {
      shown.push_back(value ? std::string(*value) : description->missing);
    } else {
      shown.push_back(std::string(key.first) + (value ? "=" + std::string(*value) : " not given"));
    }
  }
  return Join(shown, ", ");
}

// Ranks with equal values share an entry, in the order of their lowest ranks.
std::string DescribeSides(const std::vector<Side>& sides, const std::vector<Key>& differing) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const Side& side : sides) {
    const std::string text = DescribeSide(side, differing);
    auto it = std::find_if(groups.begin(), groups.end(), [&](auto& group) { return group.first == text; });
    if (it == groups.end()) it = groups.insert(it, {text, {}});
    it->second.push_back(side.rank);
  }
  std::vector<std::string> entries;
  for (const auto& [text, ranks] : groups) entries.push_back(DescribeRanks(ranks) + ": " + text);
  return Join(entries, "; ");
}

// Splits a value that AddTensor() wrote into dtype and shape.
std::pair<std::string_view, std::string_view> SplitTensor(std::string_view value) {
  const size_t space = std::min(value.find(' '), value.size());
  return {value.substr(0, space), value.substr(space)};
}

// The noun of a field; for tensors that all ranks have: dtype, shape, or both.
std::string NounOf(const std::vector<Side>& sides, const Key& key) {
  const Description* description = FindDescription(key.first);
  if (key.first != kTensorField) return description ? description->noun : std::string(key.first);
  std::set<std::string_view> dtypes, shapes;
  for (const Side& side : sides) {
    const auto value = side.ValueOf(key);
    if (!value) return description->noun;
    const auto [dtype, shape] = SplitTensor(*value);
    dtypes.insert(dtype);
    shapes.insert(shape);
  }
  return dtypes.size() == 1 ? "shape" : shapes.size() == 1 ? "dtype" : "dtype and shape";
}

std::string NounsOf(const std::vector<Side>& sides, const std::vector<Key>& differing) {
  std::vector<std::string> nouns;
  for (const Key& key : differing) {
    const std::string noun = NounOf(sides, key);
    if (std::find(nouns.begin(), nouns.end(), noun) == nouns.end()) nouns.push_back(noun);
  }
  return Join(nouns, " and ");
}

// The user does not name gradients, but can make the model equal.
std::string Remedy(const std::vector<Side>& sides) {
  const bool gradients = std::any_of(sides.begin(), sides.end(), [](const Side& side) {
    return side.ValueOf({"gradients", 0}).has_value();
  });
  if (!gradients) return ", or give the calls different names.";
  return ": train the same model on all, with the same layers in the same order, the same ones of them "
         "frozen or local, and the same loss, dtypes and options of the optimizer or tape.";
}

}  // namespace

Signature& Signature::Add(std::string_view name, std::string_view value) {
  if (!text_.empty()) text_ += kSeparator;
  text_ += name;
  text_ += '=';
  text_ += value;
  return *this;
}

Signature& Signature::AddTensor(DataType dtype, const std::vector<int64_t>& shape) {
  Add(kTensorField, NameOf(dtype));
  text_ += " [";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text_ += ", ";
    text_ += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  text_ += ']';
  return *this;
}

Signature& Signature::AddFields(std::string_view fields) {
  if (fields.empty()) return *this;
  text_ += kSeparator;
  text_ += fields;
  return *this;
}

void PrependDevice(Device device, std::string* signature) {
  signature->insert(0, std::string(kDeviceField) + '=' + NameOf(device) + kSeparator);
}

std::string DescribeMismatch(const std::string& name, const std::vector<std::string>& signatures,
                             const std::vector<int>& members) {
  std::vector<Side> sides;
  for (size_t i = 0; i < signatures.size(); ++i) {
    if (signatures[i].empty()) continue;
    sides.push_back(Parse(members.empty() ? static_cast<int>(i) : members[i], signatures[i]));
  }
  const std::vector<Key> differing = DifferingKeys(sides);
  return "The ranks submitted '" + name + "' with different arguments: " + DescribeSides(sides, differing) +
         ". Call it with the same " + NounsOf(sides, differing) + " on every rank" + Remedy(sides);
}

std::string DescribeDivisors(const std::vector<int>& over_size, const std::vector<int>& over_active) {
  const auto entry = [](const std::vector<int>& ranks, AverageOver over) {
    return DescribeRanks(ranks) + ": average_over='" + NameOf(over) + "'";
  };
  return "The joined ranks disagree on the divisor of an average: " + entry(over_size, AverageOver::kSize) +
         "; " + entry(over_active, AverageOver::kActive) +
         ". Give hvd.join() the same average_over on every rank.";
}

}  // namespace tfddl

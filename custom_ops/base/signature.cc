#include "base/signature.h"

#include <algorithm>
#include <map>

namespace tfddl {
namespace {

constexpr size_t kMaxFieldsShown = 3;
constexpr size_t kMaxRanksListed = 8;

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> fields(1);
  for (char c : text) {
    if (c == kSignatureSeparator) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::string Join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i ? separator : "") + parts[i];
  return text;
}

// The positions at which not all sides are equal; a side that has no such field differs.
std::vector<size_t> DifferingFields(const std::vector<std::vector<std::string>>& sides) {
  size_t length = 0;
  for (const auto& side : sides) length = std::max(length, side.size());
  std::vector<size_t> differing;
  for (size_t i = 0; i < length; ++i) {
    bool same = true;
    for (const auto& side : sides) {
      same &= (i < side.size()) == (i < sides[0].size()) && (i >= side.size() || side[i] == sides[0][i]);
    }
    if (!same) differing.push_back(i);
  }
  return differing;
}

std::string DescribeSide(const std::vector<std::string>& side, const std::vector<size_t>& fields) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < fields.size() && i < kMaxFieldsShown; ++i) {
    shown.push_back(fields[i] < side.size() ? side[fields[i]] : "no such tensor");
  }
  if (fields.size() > kMaxFieldsShown) shown.push_back("...");
  return Join(shown, ", ");
}

// Of many ranks, those that said the same share one entry, in the order of their lowest rank.
std::vector<std::string> DescribeGroups(const std::vector<std::vector<std::string>>& sides,
                                        const std::vector<std::string>& names,
                                        const std::vector<size_t>& fields) {
  std::vector<std::string> texts;
  std::map<std::string, std::vector<std::string>> ranks;
  for (size_t i = 0; i < sides.size(); ++i) {
    const std::string text = DescribeSide(sides[i], fields);
    if (ranks[text].empty()) texts.push_back(text);
    ranks[text].push_back(names[i]);
  }
  std::vector<std::string> entries;
  for (const auto& text : texts) entries.push_back("ranks " + Join(ranks[text], ", ") + ": " + text);
  return entries;
}

bool Begins(const std::string& text, const std::string& with) {
  return text.compare(0, with.size(), with) == 0;
}

// The word for an argument, by what its text looks like (core/compiled/call.cc, Engine::Admit).
std::string NameOfField(const std::vector<std::vector<std::string>>& sides, size_t field) {
  std::vector<std::string> texts;
  for (const auto& side : sides) {
    if (field >= side.size()) return "number of tensors";
    texts.push_back(side[field]);
  }
  const auto any = [&](const char* begin) {
    return std::any_of(texts.begin(), texts.end(), [&](auto& text) { return Begins(text, begin); });
  };
  const auto anywhere = [&](const char* part) {
    return std::any_of(texts.begin(), texts.end(),
                       [&](auto& text) { return text.find(part) != std::string::npos; });
  };
  if (any("on ")) return "device";
  if (any("root_rank")) return "root_rank";
  if (any("prescale")) return "prescale_factor and postscale_factor";
  if (anywhere("split")) return "kind of splits";
  if (anywhere("bucket") || anywhere("gradients")) return "gradients";
  if (anywhere("] of ")) return "kinds of tensors in the group";
  const size_t dims = texts[0].find(" [");
  if (dims == std::string::npos) return "operation";
  bool dtype = false, shape = false;
  for (const auto& text : texts) {
    const size_t here = std::min(text.find(" ["), text.size());
    dtype |= text.substr(0, here) != texts[0].substr(0, dims);
    shape |= text.substr(here) != texts[0].substr(dims);
  }
  return dtype && shape ? "dtype and shape" : dtype ? "dtype" : "shape";
}

// What to make equal. Where the kinds of collectives differ, what follows cannot be compared.
std::string NamesOfFields(const std::vector<std::vector<std::string>>& sides,
                          const std::vector<size_t>& fields) {
  std::vector<std::string> names;
  for (size_t field : fields) {
    const std::string name = NameOfField(sides, field);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    if (name == "operation") break;
  }
  return Join(names, " and ");
}

// What else helps. Names of gradients are not the user's: what can be made equal is the model.
std::string Remedy(const std::string& name, const std::string& what) {
  const bool gradients = what == "gradients" || name.find("DistributedOptimizer") != std::string::npos ||
                         name.find("DistributedGradientTape") != std::string::npos;
  if (!gradients) return ", or give the calls different names.";
  return ": train the same model on all, with the same layers in the same order, the same ones of them "
         "frozen or local, and the same loss, dtypes and options of the optimizer or tape.";
}

}  // namespace

std::string DescribeTensor(DataType dtype, const std::vector<int64_t>& shape) {
  std::vector<std::string> dims;
  for (int64_t dim : shape) dims.push_back(dim < 0 ? "?" : std::to_string(dim));
  return std::string(NameOf(dtype)) + " [" + Join(dims, ", ") + "]";
}

std::string MakeSignature(const std::vector<std::string>& fields) {
  return Join(fields, std::string(1, kSignatureSeparator));
}

std::string DescribeMismatch(const std::string& name, const std::vector<std::string>& signatures,
                             const std::vector<int>& members) {
  std::vector<std::vector<std::string>> sides;
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < signatures.size(); ++rank) {
    if (signatures[rank].empty()) continue;
    sides.push_back(Split(signatures[rank]));
    ranks.push_back(std::to_string(members.empty() ? static_cast<int>(rank) : members[rank]));
  }
  const auto fields = DifferingFields(sides);
  std::vector<std::string> entries;
  if (sides.size() <= kMaxRanksListed) {
    for (size_t i = 0; i < sides.size(); ++i) {
      entries.push_back("rank " + ranks[i] + ": " + DescribeSide(sides[i], fields));
    }
  } else {
    entries = DescribeGroups(sides, ranks, fields);
  }
  const std::string what = NamesOfFields(sides, fields);
  return "The ranks submitted '" + name + "' with different arguments: " + Join(entries, "; ") +
         ". Call it with the same " + what + " on every rank" + Remedy(name, what);
}

std::string DescribeDivisors(const std::vector<int>& over_size, const std::vector<int>& over_active) {
  const auto side = [](const std::vector<int>& ranks, AverageOver over) {
    std::vector<std::string> numbers;
    for (int rank : ranks) numbers.push_back(std::to_string(rank));
    return (ranks.size() == 1 ? "rank " : "ranks ") + Join(numbers, ", ") + ": average_over='" +
           NameOf(over) + "'";
  };
  return "The ranks disagree on what an average divides by while some have joined: " +
         side(over_size, AverageOver::kSize) + "; " + side(over_active, AverageOver::kActive) +
         ". Give hvd.join() the same average_over on every rank.";
}

}  // namespace tfddl

#include "core/compiled/call.h"

#include <cstddef>
#include <stdexcept>

#include "base/rows.h"
#include "base/signature.h"
#include "base/wire.h"

namespace tfddl {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

std::string ToHex(const std::string& bytes) {
  std::string text;
  for (char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

int Digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  throw std::runtime_error("internal error: a compiled call is not hexadecimal");
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(16 * Digit(text[i]) + Digit(text[i + 1]));
  }
  return bytes;
}

// The fields in order, for both directions: `archive` writes or reads each field.
template <typename Archive, typename CallType>
void Visit(Archive* archive, CallType* call) {
  archive->Text(&call->rank_query);
  archive->Number(&call->process_set);
  archive->Text(&call->name);
  archive->Number(&call->kind);
  archive->Number(&call->dtype);
  archive->Number(&call->op);
  archive->Text(&call->prescale);
  archive->Text(&call->postscale);
  archive->Text(&call->context);
  archive->Number(&call->bucket);
  archive->Number(&call->buckets);
  archive->Number(&call->root);
  archive->Text(&call->splits);
  archive->Shapes(&call->shapes);
  archive->Number(&call->rank);
  archive->Number(&call->size);
}

struct Writing {
  void Text(const std::string* text) { writer.String(*text); }
  template <typename T>
  void Number(const T* number) {
    writer.Int(static_cast<int64_t>(*number));
  }
  void Shapes(const std::vector<Shape>* shapes) {
    writer.Int(static_cast<int64_t>(shapes->size()));
    for (const auto& shape : *shapes) {
      writer.Int(static_cast<int64_t>(shape.size()));
      for (int64_t dim : shape) writer.Int(dim);
    }
  }
  WireWriter writer;
};

struct Reading {
  void Text(std::string* text) { *text = reader.String(); }
  template <typename T>
  void Number(T* number) {
    *number = static_cast<T>(reader.Int());
  }
  void Shapes(std::vector<Shape>* shapes) {
    for (int64_t left = reader.Int(); left > 0; --left) {
      Shape& shape = shapes->emplace_back();
      for (int64_t dims = reader.Int(); dims > 0; --dims) shape.push_back(reader.Int());
    }
  }
  WireReader reader;
};

}  // namespace

std::string Call::Signature(const std::vector<Shape>& inputs) const {
  tfddl::Signature signature(kind);
  const bool reduces = kind == Kind::kAllreduce || kind == Kind::kReducescatter;
  const bool open = kind == Kind::kAllgather || kind == Kind::kAlltoall;  // first dimensions
  if (reduces) {
    signature.Add(kOpField, NameOf(op)).Add(kPrescaleField, prescale).Add(kPostscaleField, postscale);
  }
  if (buckets > 1) signature.Add(kBucketsField, std::to_string(buckets) + " buckets");
  if (kind == Kind::kBroadcast) signature.Add(kRootField, std::to_string(root));
  if (kind == Kind::kAlltoall) signature.Add(kSplitsField, splits);
  signature.AddFields(context);
  if (buckets > 1) return signature.text();
  for (Shape shape : inputs) {
    if (open) shape.at(0) = -1;
    signature.AddTensor(dtype, shape);
  }
  return signature.text();
}

std::vector<Shape> Call::OutputShapes() const {
  if (!rank_query.empty()) return {{}};
  std::vector<Shape> outputs = shapes;
  for (Shape& shape : outputs) {
    if (kind == Kind::kAllgather) shape.at(0) *= size;
    if (kind == Kind::kReducescatter) shape.at(0) = RowsOf(shape.at(0), rank, size);
  }
  return outputs;
}

std::string Call::Encode() const {
  Writing writing;
  Visit(&writing, this);
  return ToHex(writing.writer.bytes());
}

Call Call::Decode(const std::string& text) {
  const std::string bytes = FromHex(text);
  Reading reading{WireReader(bytes)};
  Call call;
  Visit(&reading, &call);
  return call;
}

int64_t Elements(const Shape& shape) { return shape.empty() ? 1 : shape[0] * RowElements(shape); }

int64_t RowElements(const Shape& shape) {
  int64_t elements = 1;
  for (size_t i = 1; i < shape.size(); ++i) elements *= shape[i];
  return elements;
}

}  // namespace tfddl

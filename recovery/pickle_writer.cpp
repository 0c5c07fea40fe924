#include "recovery/pickle_writer.h"

#include <bit>

#include "recovery/append_le.h"

namespace gradtap::recovery {

PickleWriter::PickleWriter() : out_("\x80\x02") {}

void PickleWriter::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
}

void PickleWriter::begin_dict() {
  out_ += "}(";
}

void PickleWriter::begin_ordered_dict() {
  global("collections", "OrderedDict");
  out_ += ")R(";
}

void PickleWriter::end_dict() {
  out_ += 'u';
}

void PickleWriter::begin_list() {
  out_ += "](";
}

void PickleWriter::end_list() {
  out_ += 'e';
}

void PickleWriter::begin_tuple() {
  out_ += '(';
}

void PickleWriter::end_tuple() {
  out_ += 't';
}

void PickleWriter::text(std::string_view value) {
  out_ += 'X';
  append_le(out_, static_cast<std::uint32_t>(value.size()));
  out_ += value;
}

void PickleWriter::integer(std::uint64_t value) {
  if (value < 1U << 8) {
    out_ += 'K';
    append_le(out_, static_cast<std::uint8_t>(value));
  } else if (value < 1U << 16) {
    out_ += 'M';
    append_le(out_, static_cast<std::uint16_t>(value));
  } else if (value < 1U << 31) {
    out_ += 'J';
    append_le(out_, static_cast<std::uint32_t>(value));
  } else {
    out_ += "\x8a\x08";
    append_le(out_, value);
  }
}

void PickleWriter::signed_integer(std::int64_t value) {
  if (value >= 0) return integer(static_cast<std::uint64_t>(value));
  out_ += "\x8a\x08";
  append_le(out_, static_cast<std::uint64_t>(value));
}

void PickleWriter::real(double value) {
  out_ += 'G';
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) out_.push_back(static_cast<char>(bits >> shift & 0xFF));
}

void PickleWriter::boolean(bool value) {
  out_ += value ? '\x88' : '\x89';
}

void PickleWriter::none() {
  out_ += 'N';
}

void PickleWriter::tensor(const PickledTensor& value) {
  global("torch._utils", "_rebuild_tensor_v2");
  begin_tuple();
  begin_tuple();
  text("storage");
  global("torch", value.storage_class);
  text(std::to_string(value.storage));
  text("cpu");
  integer(value.numel);
  end_tuple();
  out_ += 'Q';  // the storage by its persistent id
  integer(0);   // offset in the storage
  begin_tuple();
  for (const std::uint64_t size : value.shape) integer(size);
  end_tuple();
  begin_tuple();
  for (const std::uint64_t stride : value.strides) integer(stride);
  end_tuple();
  boolean(false);  // requires_grad
  global("collections", "OrderedDict");
  out_ += ")R";  // backward hooks
  end_tuple();
  out_ += 'R';
}

std::string PickleWriter::finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace gradtap::recovery

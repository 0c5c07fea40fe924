#include "recovery/side_value.h"

#include <array>
#include <bit>

#include <fmt/format.h>

namespace gradtap::recovery {

namespace {

constexpr std::string_view kMagic = "GTS1";

class Parser {
 public:
  Parser(ByteSpan bytes, const SideValueLimits& limits) : reader_(bytes), limits_(limits) {}

  Result<SideValue> parse() {
    const ByteSpan magic = reader_.take(kMagic.size());
    if (std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) != kMagic)
      return wrong("not a value in GTS1");
    auto value = read(0);
    if (!value) return value;
    if (reader_.remaining() != 0) return wrong("bytes follow the value");
    return value;
  }

 private:
  [[nodiscard]] std::unexpected<Error> wrong(std::string what) const {
    return fail(ErrorCode::kBadText, std::move(what), fmt::format("side state, offset {}", reader_.position()));
  }

  // A count of things of at least `each` bytes.
  Result<std::uint64_t> count(std::uint64_t each) {
    const auto n = reader_.le<std::uint64_t>();
    if (!reader_.ok() || n > reader_.remaining() / each) return wrong("a count or length is longer than the bytes");
    return n;
  }

  Result<SideValue> sized(SideValue::Kind kind) {
    const auto n = count(1);
    if (!n) return std::unexpected(n.error());
    SideValue value;
    value.kind = kind;
    value.bytes = reader_.take(*n);
    return value;
  }

  Result<SideValue> children(SideValue::Kind kind, std::uint32_t depth, std::uint64_t of_each) {
    const auto n = count(of_each);
    if (!n) return std::unexpected(n.error());
    SideValue value;
    value.kind = kind;
    for (std::uint64_t i = 0; i < *n * of_each; ++i) {
      auto item = read(depth + 1);
      if (!item) return item;
      if (kind != SideValue::Kind::kOther) value.items.push_back(std::move(*item));
    }
    return value;
  }

  Result<SideValue> words(SideValue::Kind kind) {
    const auto n = count(4);
    if (!n) return std::unexpected(n.error());
    values_ += *n;
    if (values_ > limits_.values) return wrong("too many values");
    SideValue value;
    value.kind = kind;
    for (std::uint64_t i = 0; i < *n; ++i) {
      SideValue item;
      item.kind = SideValue::Kind::kInteger;
      item.integer = reader_.le<std::uint32_t>();
      value.items.push_back(std::move(item));
    }
    return value;
  }

  // NumPy spells the size of an element at the end: "<f8", "|b1", "<U12" (4 bytes a letter).
  static std::uint64_t numpy_bytes(std::string_view dtype) {
    if (dtype.size() < 3 || dtype.size() > 12) return 0;
    std::uint64_t bytes = 0;
    for (const char digit : dtype.substr(2)) {
      if (digit < '0' || digit > '9') return 0;
      bytes = bytes * 10 + static_cast<std::uint64_t>(digit - '0');
    }
    return dtype[1] == 'U' ? bytes * 4 : bytes;
  }

  Result<SideValue> array(bool torch) {
    auto dtype = sized(SideValue::Kind::kText);
    if (!dtype) return dtype;
    SideValue value;
    value.kind = torch ? SideValue::Kind::kTensor : SideValue::Kind::kOther;
    value.dtype = dtype->text();
    std::uint64_t bytes = torch ? torch_dtype_bytes(value.dtype) : numpy_bytes(value.dtype);
    if (bytes == 0) return wrong("an array of an unknown type");
    const auto dims = reader_.le<std::uint8_t>();
    for (unsigned i = 0; i < dims; ++i) {
      value.shape.push_back(reader_.le<std::uint64_t>());
      if (__builtin_mul_overflow(bytes, value.shape.back(), &bytes) || value.shape.back() > (std::uint64_t{1} << 40))
        return wrong("an array is impossibly large");
    }
    if (!reader_.ok() || bytes > reader_.remaining()) return wrong("an array is longer than the bytes");
    value.bytes = reader_.take(bytes);
    return value;
  }

  Result<SideValue> read(std::uint32_t depth) {
    if (depth > limits_.depth || ++values_ > limits_.values) return wrong("nested too deep, or too many values");
    SideValue value;
    const auto tag = static_cast<char>(reader_.le<std::uint8_t>());
    if (!reader_.ok()) return wrong("the value ends early");
    using Kind = SideValue::Kind;
    switch (tag) {
      case 'N':
        return value;
      case 'T':
      case 'F':
        value.kind = Kind::kBool;
        value.integer = tag == 'T' ? 1 : 0;
        return value;
      case 'i':
        value.kind = Kind::kInteger;
        value.integer = static_cast<std::int64_t>(reader_.le<std::uint64_t>());
        break;
      case 'd':
        value.kind = Kind::kReal;
        value.real = std::bit_cast<double>(reader_.le<std::uint64_t>());
        break;
      case 'c':
        value.kind = Kind::kOther;
        reader_.skip(16);
        break;
      case 's':
        return sized(Kind::kText);
      case 'b':
        return sized(Kind::kBytes);
      case 'I':
      case 'y':
      case 'f':
        return sized(Kind::kOther);
      case 'l':
        return children(Kind::kList, depth, 1);
      case 't':
        return children(Kind::kTuple, depth, 1);
      case 'S':
      case 'Z':
        return children(Kind::kOther, depth, 1);
      case 'm':
      case 'o':
        return children(Kind::kDict, depth, 2);
      case 'C':
        return children(Kind::kOther, depth, 2);
      case 'w':
        return words(Kind::kTuple);
      case 'W':
        return words(Kind::kList);
      case 'x':
        return array(true);
      case 'a':
      case 'g':
        return array(false);
      case 'z': {
        const auto n = count(8);
        if (!n) return std::unexpected(n.error());
        value.kind = Kind::kOther;
        reader_.skip(*n * 8);
        break;
      }
      default:
        return wrong(fmt::format("unknown tag 0x{:02x}", static_cast<unsigned char>(tag)));
    }
    if (!reader_.ok()) return wrong("the value ends early");
    return value;
  }

  ByteReader reader_;
  const SideValueLimits limits_;
  std::size_t values_ = 0;
};

}  // namespace

const SideValue* SideValue::find(std::string_view key) const {
  if (kind != Kind::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2)
    if (items[i].kind == Kind::kText && items[i].text() == key) return &items[i + 1];
  return nullptr;
}

Result<SideValue> parse_side_value(ByteSpan bytes, const SideValueLimits& limits) {
  return Parser(bytes, limits).parse();
}

std::size_t torch_dtype_bytes(std::string_view dtype) {
  constexpr std::array<std::pair<std::string_view, std::size_t>, 12> kSizes = {{{"float32", 4},
                                                                                {"float64", 8},
                                                                                {"float16", 2},
                                                                                {"bfloat16", 2},
                                                                                {"uint8", 1},
                                                                                {"int8", 1},
                                                                                {"int16", 2},
                                                                                {"int32", 4},
                                                                                {"int64", 8},
                                                                                {"bool", 1},
                                                                                {"complex64", 8},
                                                                                {"complex128", 16}}};
  for (const auto& [name, size] : kSizes)
    if (name == dtype) return size;
  return 0;
}

}  // namespace gradtap::recovery

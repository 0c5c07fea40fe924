#include "replica/json_fields.h"

#include <fmt/format.h>

#include "common/json_text.h"

namespace gradtap::replica {
namespace {

std::string place(std::string_view where, const char* name) {
  return where.empty() ? std::string(name) : fmt::format("{}.{}", where, name);
}

}  // namespace

std::unexpected<Error> json_wrong(std::string_view where, std::string_view expected, const Json& value) {
  return fail(ErrorCode::kSchemaInvalid, "a field has a wrong type or value", std::string(where), std::string(expected),
              value.type_name());
}

Result<Json> parse_json_object(std::string_view text, std::string_view where) {
  Json document = parse_json_text(text);
  if (document.is_discarded() || !document.is_object())
    return fail(ErrorCode::kRequestMalformed, "a body is not a JSON object", std::string(where));
  return document;
}

Result<const Json*> json_field(const Json& object, const char* name, std::string_view where) {
  if (!object.is_object()) return json_wrong(where, "an object", object);
  const auto found = object.find(name);
  if (found == object.end()) return fail(ErrorCode::kSchemaInvalid, "a field is missing", place(where, name));
  return &*found;
}

Result<const Json*> json_array(const Json& object, const char* name, std::string_view where, std::size_t limit) {
  GRADTAP_LET(value, json_field(object, name, where));
  if (!value->is_array()) return json_wrong(place(where, name), "an array", *value);
  if (value->size() > limit)
    return fail(ErrorCode::kSchemaInvalid, "an array is too long", place(where, name), fmt::format("at most {}", limit),
                fmt::format("{}", value->size()));
  return value;
}

Result<const Json*> json_object(const Json& object, const char* name, std::string_view where) {
  GRADTAP_LET(value, json_field(object, name, where));
  if (!value->is_object()) return json_wrong(place(where, name), "an object", *value);
  return value;
}

Result<std::string> json_text(const Json& object, const char* name, std::string_view where) {
  GRADTAP_LET(value, json_field(object, name, where));
  if (!value->is_string()) return json_wrong(place(where, name), "a string", *value);
  return value->get_ref<const std::string&>();
}

Result<std::uint64_t> json_uint_value(const Json& value, std::string_view where, std::uint64_t limit) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<std::int64_t>() < 0))
    return json_wrong(where, "a non-negative integer", value);
  const auto number = value.get<std::uint64_t>();
  if (number > limit)
    return fail(ErrorCode::kSchemaInvalid, "an integer is too large", std::string(where),
                fmt::format("at most {}", limit), fmt::format("{}", number));
  return number;
}

Result<std::uint64_t> json_uint(const Json& object, const char* name, std::string_view where, std::uint64_t limit) {
  GRADTAP_LET(value, json_field(object, name, where));
  return json_uint_value(*value, place(where, name), limit);
}

Result<bool> json_bool(const Json& object, const char* name, std::string_view where) {
  GRADTAP_LET(value, json_field(object, name, where));
  if (!value->is_boolean()) return json_wrong(place(where, name), "true or false", *value);
  return value->get<bool>();
}

}  // namespace gradtap::replica

// Reading fields of untrusted JSON with named errors.
//
// Purpose: every reader of the side channel's bodies says which field is missing or wrong (422 with the field's name).
// Free functions over a parsed document; no exception leaves them; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace gradtap::replica {

using Json = nlohmann::json;

// kRequestMalformed when the text is not a JSON object, or nested deeper than kJsonDepthMax.
[[nodiscard]] Result<Json> parse_json_object(std::string_view text, std::string_view where);

// "where" names the object that holds the field; errors name where.field.
[[nodiscard]] Result<const Json*> json_field(const Json& object, const char* name, std::string_view where);
[[nodiscard]] Result<const Json*> json_array(const Json& object, const char* name, std::string_view where,
                                             std::size_t limit);
[[nodiscard]] Result<const Json*> json_object(const Json& object, const char* name, std::string_view where);
[[nodiscard]] Result<std::string> json_text(const Json& object, const char* name, std::string_view where);
[[nodiscard]] Result<std::uint64_t> json_uint(const Json& object, const char* name, std::string_view where,
                                              std::uint64_t limit);
[[nodiscard]] Result<bool> json_bool(const Json& object, const char* name, std::string_view where);

// The same for a value that is at hand, e.g. an array's element; `where` names the value.
[[nodiscard]] Result<std::uint64_t> json_uint_value(const Json& value, std::string_view where, std::uint64_t limit);
[[nodiscard]] std::unexpected<Error> json_wrong(std::string_view where, std::string_view expected, const Json& value);

}  // namespace gradtap::replica

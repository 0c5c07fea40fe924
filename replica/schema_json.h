// The attach body's parameters, buffers, optimizer and layout, from JSON to checked structures.
//
// Purpose: the side channel's replica parts (docs/side-channel.md). Pure; no exception leaves it; any thread. Failure
// behaviour: kSchemaInvalid, kLayoutInvalid or kRecipeUnsupported, with the field's name in Error::where.
#pragma once

#include <vector>

#include "replica/json_fields.h"
#include "replica/layout.h"
#include "replica/schema.h"

namespace gradtap::replica {

// Reads "parameters", "buffers" (may be absent) and "optimizer"; the result is validated.
[[nodiscard]] Result<Schema> parse_schema(const Json& attach, const SchemaLimits& limits = {});

// One object of "groups": hyper-parameters as bits.
[[nodiscard]] Result<GroupHyper> parse_group(const Json& group, OptimizerClass type, std::string_view where);
[[nodiscard]] Result<std::vector<GroupHyper>> parse_groups(const Json& groups, OptimizerClass type,
                                                           std::string_view where);

// A layout body: {"buckets": [[[parameter, numel], ...], ...], "dtype": "float32"}.
[[nodiscard]] Result<Layout> parse_layout(const Json& layout, const Schema& schema);

// 64 lower-case hex digits.
[[nodiscard]] Result<LayoutId> parse_layout_id(const Json& object, const char* name, std::string_view where);

}  // namespace gradtap::replica

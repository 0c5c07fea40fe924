#include "common/log_context.h"

#include <doctest/doctest.h>

#include "common/log.h"

namespace gradtap {

TEST_CASE("every line says job and lineage, once, and hostile names forge no line") {
  CHECK(with_log_context("ready port=1") == "ready port=1");
  set_log_context({{"job", "gpt"}, {"lineage", "3"}});
  CHECK(with_log_context("ready port=1") == "ready port=1 job=gpt lineage=3");
  CHECK(with_log_context(log_text("recovered", {{"lineage", 4}, {"step", 7}})) == "recovered lineage=4 step=7 job=gpt");
  set_log_context({{"job", "a b\n2026 error: x"}});
  CHECK(with_log_context("ready") == R"(ready job="a b\x0a2026 error: x")");
  set_log_context({});
  CHECK(with_log_context("ready") == "ready");
}

}  // namespace gradtap

// NodeClient: reads answers of a node's gateway over HTTP.
//
// Purpose: the one place of the command line that speaks HTTP. Every request has a deadline. An answer that is not the
// JSON it should be is an error that names the endpoint. A token or a job's key (node_access.h) is read when the client
// is made; where that fails, every request has that error. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "apps/commands/node_access.h"
#include "common/error.h"
#include "common/secret_file.h"

namespace gradtap::commands {

class NodeClient {
 public:
  explicit NodeClient(std::string endpoint, const NodeAccess& access = {}, unsigned timeout_ms = 2000);

  // GET of a JSON document.
  [[nodiscard]] Result<nlohmann::json> get(const std::string& path) const;
  // POST of a JSON document, answered by one.
  [[nodiscard]] Result<nlohmann::json> post(const std::string& path, const nlohmann::json& body) const;
  // GET of a byte stream; sink returns false to stop (a full disk).
  [[nodiscard]] Status download(const std::string& path, const std::function<bool(std::string_view)>& sink) const;
  // The job to speak of: `name`, or the only job of the node when name is empty.
  [[nodiscard]] Result<std::string> job_or_only(const std::string& name) const;

 private:
  // The headers of a request that show who asks.
  [[nodiscard]] Result<std::multimap<std::string, std::string>> credentials(std::string_view method,
                                                                            const std::string& path,
                                                                            std::string_view body) const;

  std::string endpoint_;
  Status usable_;
  std::string token_;
  std::optional<JobSecret> secret_;
  unsigned timeout_ms_;
};

}  // namespace gradtap::commands

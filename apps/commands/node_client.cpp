#include "apps/commands/node_client.h"

#include <httplib.h>

#include "common/json_text.h"
#include "common/request_signature.h"
#include "common/sha256.h"

namespace gradtap::commands {

namespace {

Error from_answer(const std::string& endpoint, const std::string& path, int status, const std::string& body) {
  Error error{ErrorCode::kPeerUnreachable,
              "the node refused the request",
              endpoint + path,
              "status 200",
              "status " + std::to_string(status),
              "see the node's log"};
  const auto document = parse_json_text(body);
  if (!document.is_object() || !document.contains("error") || !document["error"].is_object()) return error;
  const auto& fields = document["error"];
  auto text = [&](const char* key, std::string& target) {
    if (fields.contains(key) && fields[key].is_string()) target = fields[key].get<std::string>();
  };
  if (fields.contains("code") && fields["code"].is_number_unsigned())
    error.code = static_cast<ErrorCode>(fields["code"].get<unsigned>());
  text("what", error.what);
  text("where", error.where);
  text("expected", error.expected);
  text("actual", error.actual);
  text("remedy", error.remedy);
  return error;
}

httplib::Client connect(const std::string& endpoint, unsigned timeout_ms) {
  httplib::Client client(endpoint);
  const time_t seconds = timeout_ms / 1000;
  const time_t microseconds = static_cast<time_t>(timeout_ms % 1000) * 1000;
  client.set_connection_timeout(seconds, microseconds);
  client.set_read_timeout(seconds, microseconds);
  client.set_write_timeout(seconds, microseconds);
  client.set_url_encode(false);  // what is signed is what is sent
  return client;
}

std::unexpected<Error> unreachable(const std::string& endpoint, const httplib::Result& result) {
  return fail(ErrorCode::kPeerUnreachable, "the node does not answer", endpoint, "an HTTP answer",
              httplib::to_string(result.error()), "start gradtapd there, or pass another --endpoint");
}

}  // namespace

NodeClient::NodeClient(std::string endpoint, const NodeAccess& access, unsigned timeout_ms)
    : endpoint_(std::move(endpoint)), timeout_ms_(timeout_ms) {
  if (endpoint_.find("://") == std::string::npos) endpoint_ = "http://" + endpoint_;
  if (!access.token_file.empty()) {
    auto token = load_token(access.token_file);
    if (token)
      token_ = std::move(*token);
    else
      usable_ = std::unexpected(token.error());
  } else if (!access.secret_file.empty()) {
    const auto secrets = load_secrets(access.secret_file);
    if (secrets)
      secret_ = secrets->front();
    else
      usable_ = std::unexpected(secrets.error());
  }
}

Result<std::multimap<std::string, std::string>> NodeClient::credentials(std::string_view method,
                                                                        const std::string& path,
                                                                        std::string_view body) const {
  if (!usable_) return std::unexpected(usable_.error());
  std::multimap<std::string, std::string> headers;
  if (!token_.empty()) headers.emplace("Authorization", "Bearer " + token_);
  if (secret_ && path.starts_with("/v1/jobs/")) {
    const std::string digest = to_hex(sha256(body));
    headers.emplace("X-Gradtap-Content-SHA256", digest);
    headers.emplace("Authorization", request_authorization(*secret_, {method, path, {}, {}, digest}));
  }
  return headers;
}

namespace {

Result<nlohmann::json> document_of(const std::string& endpoint, const std::string& path,
                                   const httplib::Result& result) {
  if (!result) return unreachable(endpoint, result);
  if (result->status != 200) return std::unexpected(from_answer(endpoint, path, result->status, result->body));
  auto document = parse_json_text(result->body);
  if (!document.is_object())
    return fail(ErrorCode::kRequestMalformed, "the node's answer is not a JSON object", endpoint + path, "JSON",
                result->body.substr(0, 60), "check that the endpoint is a gradtap node");
  return document;
}

}  // namespace

Result<nlohmann::json> NodeClient::get(const std::string& path) const {
  const auto shown = credentials("GET", path, {});
  if (!shown) return std::unexpected(shown.error());
  const httplib::Headers headers(shown->begin(), shown->end());
  return document_of(endpoint_, path, connect(endpoint_, timeout_ms_).Get(path, headers));
}

Result<nlohmann::json> NodeClient::post(const std::string& path, const nlohmann::json& body) const {
  const std::string text = body.dump();
  const auto shown = credentials("POST", path, text);
  if (!shown) return std::unexpected(shown.error());
  const httplib::Headers headers(shown->begin(), shown->end());
  return document_of(endpoint_, path, connect(endpoint_, timeout_ms_).Post(path, headers, text, "application/json"));
}

Status NodeClient::download(const std::string& path, const std::function<bool(std::string_view)>& sink) const {
  const auto shown = credentials("GET", path, {});
  if (!shown) return std::unexpected(shown.error());
  const httplib::Headers headers(shown->begin(), shown->end());
  httplib::Client client = connect(endpoint_, timeout_ms_);
  client.set_read_timeout(60, 0);  // rebuilding a large state from the log takes a while before the first byte
  int status = 0;
  std::string refusal;
  const auto result = client.Get(
      path, headers,
      [&](const httplib::Response& response) {
        status = response.status;
        return true;
      },
      [&](const char* data, std::size_t count) {
        if (status == 200) return sink({data, count});
        if (refusal.size() < 64 * 1024) refusal.append(data, count);
        return true;
      });
  if (!result) return unreachable(endpoint_, result);
  if (status != 200) return std::unexpected(from_answer(endpoint_, path, status, refusal));
  return {};
}

Result<std::string> NodeClient::job_or_only(const std::string& name) const {
  if (!name.empty()) return name;
  auto status = get("/v1/status");
  if (!status) return std::unexpected(status.error());
  const auto jobs = status->value("jobs", nlohmann::json::array());
  if (jobs.size() != 1 || !jobs[0].contains("job") || !jobs[0]["job"].is_string())
    return fail(ErrorCode::kJobUnknown, "the node has not exactly one job", endpoint_, "one job",
                std::to_string(jobs.size()), "name it with --job");
  return jobs[0]["job"].get<std::string>();
}

}  // namespace gradtap::commands

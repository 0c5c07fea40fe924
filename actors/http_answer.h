// HttpAnswer: what an actor answers to an HTTP request that the gateway carried to it. Plain value.
#pragma once

#include <string>

#include "common/error.h"

namespace gradtap::actors {

struct HttpAnswer {
  int status = 200;
  std::string body = "{}";  // JSON, unless type says otherwise
  std::string type = "application/json";
};

// The JSON error body of docs/side-channel.md; the HTTP status follows from the code unless given.
[[nodiscard]] HttpAnswer http_error(const Error& error, int status = 0);

}  // namespace gradtap::actors

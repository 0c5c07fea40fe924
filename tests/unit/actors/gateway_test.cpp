#include "actors/gateway.h"

#include <doctest/doctest.h>
#include <httplib.h>

#include "tests/unit/actors/fake_actor.h"

namespace gradtap::actors {

TEST_CASE("an actor that does not answer in time costs its caller a 503, counted") {
  caf::actor_system_config config;
  caf::actor_system system{config};
  test::Probe probe{system};
  GatewayOptions options;
  options.job = "job";
  options.deadline_ms = 50;
  options.side_channel = test::spawn_fake<SideChannelActor>(
      system, [](post_atom, const MessagesPostPtr&) { return HttpAnswer{200, R"({"durable_seq": 1})"}; });
  // Takes the question, and says nothing.
  std::vector<caf::response_promise> kept;
  options.admin = caf::actor_cast<AdminActor>(system.spawn([&kept](caf::event_based_actor* self) -> caf::behavior {
    return {[&kept, self](whole_atom, const std::string&, const std::string&) {
      kept.push_back(self->make_response_promise());
      return kept.back();
    }};
  }));
  auto gateway = spawn_gateway(system, options);
  REQUIRE(gateway);
  HttpRequest post;
  post.method = "POST";
  post.path = "/v1/jobs/job/messages";
  CHECK(gateway->here(std::move(post)).status == 200);
  CHECK(probe.status(gateway->actor)["unanswered"] == 0);

  const auto answer = [&](std::string path) {
    httplib::Client client("127.0.0.1", gateway->server->port());
    const auto got = client.Get(path.c_str());
    REQUIRE(got);
    return *got;
  };
  const auto late = answer("/v1/epoch");
  CHECK(late.status == 503);
  CHECK(late.body.find("NODE_BUSY") != std::string::npos);
  CHECK(late.body.find("an answer in 50 ms") != std::string::npos);
  CHECK(probe.status(gateway->actor)["unanswered"] == 1);
  gateway->server->stop();
  for (caf::response_promise& promise : kept) promise.deliver(HttpAnswer{});
  kept.clear();
  probe.end(gateway->actor);
  probe.end(options.side_channel);
  probe.end(options.admin);
}

}  // namespace gradtap::actors

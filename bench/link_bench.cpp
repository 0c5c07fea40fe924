// The node link under TLS, against a plain connection of OpenSSL in the same process and run, and how long a small
// message takes over a control connection while bulk bytes flow beside it.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link/certificate.h"
#include "link/node_link.h"
#include "link/small_file.h"

namespace {

using namespace gradtap;
using namespace gradtap::link;

constexpr std::size_t kChunk = std::size_t{256} << 10;
constexpr std::size_t kAnswer = std::size_t{64} << 20;
constexpr std::uint64_t kDeadlineMs = 600'000;
constexpr int kPings = 400;
constexpr std::size_t kPingBytes = 256;

void must(bool right, const char* what) {
  if (!right) throw std::runtime_error(what);
}

std::vector<std::uint8_t> noise(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  std::uint64_t state = 1;
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>((state = state * 6364136223846793005ULL + 1) >> 56);
  return bytes;
}

// An authority and one certificate for each of two nodes, in a folder that removes itself.
struct Certificates {
  std::string folder;
  CertifiedKey authority;
  std::array<CertifiedKey, 2> nodes;
  Certificates() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gradtap-bench-XXXXXX").string();
    must(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
    folder = pattern;
    const std::int64_t now =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    const Validity valid{now - 3600, now + 86400};
    authority = make_authority("gradtap cluster bench", valid).value();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      nodes[i] = issue_certificate(authority, name(i), {}, valid).value();
      const std::string own = folder + "/" + name(i);
      std::filesystem::create_directories(own);
      must(write_small_file(own + "/ca.crt", authority.certificate, 0644).has_value(), "write");
      must(write_small_file(own + "/node.crt", nodes[i].certificate, 0644).has_value(), "write");
      must(write_small_file(own + "/node.key", nodes[i].key, 0600).has_value(), "write");
    }
  }
  ~Certificates() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  static std::string name(std::size_t i) { return i == 0 ? "a" : "b"; }
};

int loopback_listener(sockaddr_in& address) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  must(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(listener, 4) == 0 &&
           ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0,
       "listen");
  return listener;
}

int connect_to(const sockaddr_in& address) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  must(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return socket;
}

// One connection of OpenSSL 3 as its documentation shows it: TLS 1.3, the link's first cipher, blocking.
struct RawTls {
  explicit RawTls(const Certificates& from) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's own socket raises it when the other end has gone
    context = SSL_CTX_new(TLS_method());
    must(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1, "cipher");
    BIO* const text = BIO_new_mem_buf(from.nodes[0].certificate.data(), -1);
    X509* const certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
    BIO* const secret = BIO_new_mem_buf(from.nodes[0].key.data(), -1);
    EVP_PKEY* const key = PEM_read_bio_PrivateKey(secret, nullptr, nullptr, nullptr);
    must(SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1,
         "certificate");
    X509_free(certificate);
    EVP_PKEY_free(key);
    BIO_free(text);
    BIO_free(secret);
    sockaddr_in address{};
    const int listener = loopback_listener(address);
    sender = std::thread([this, address] {
      const int socket = connect_to(address);
      SSL* const ssl = SSL_new(context);
      SSL_set_fd(ssl, socket);
      const std::vector<std::uint8_t> chunk = noise(kChunk);
      if (SSL_connect(ssl) == 1)
        while (!stop.load() && SSL_write(ssl, chunk.data(), static_cast<int>(chunk.size())) > 0) {
        }
      SSL_free(ssl);
      ::close(socket);
    });
    socket = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    ssl = SSL_new(context);
    SSL_set_fd(ssl, socket);
    must(SSL_accept(ssl) == 1, "handshake");
  }
  ~RawTls() {
    stop.store(true);
    ::close(socket);  // with bytes unread: a reset, which ends the sender's write
    sender.join();
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
  void read(std::uint8_t* to, std::size_t count) const {
    while (count > 0) {
      const int got = SSL_read(ssl, to, static_cast<int>(count));
      must(got > 0, "read");
      to += got;
      count -= static_cast<std::size_t>(got);
    }
  }
  SSL_CTX* context = nullptr;
  SSL* ssl = nullptr;
  int socket = -1;
  std::atomic<bool> stop{false};
  std::thread sender;
};

// Chunks of one buffer, as a store hands them out.
class Chunks final : public ChunkSource {
 public:
  explicit Chunks(const std::vector<std::uint8_t>& chunk) : chunk_(chunk) {}
  [[nodiscard]] std::uint64_t chunks() const override { return kAnswer / kChunk; }
  [[nodiscard]] Result<std::vector<std::uint8_t>> chunk(std::uint64_t) override { return chunk_; }

 private:
  const std::vector<std::uint8_t>& chunk_;
};

struct Pair {
  explicit Pair(bool tls) : chunk(noise(kChunk)) {
    echo_listener = loopback_listener(echo_address);
    std::vector<LinkMember> members;
    for (std::size_t i = 0; i < 2; ++i) {
      sockaddr_in address{};
      ::close(loopback_listener(address));
      members.push_back({Certificates::name(i), "127.0.0.1", ntohs(address.sin_port)});
    }
    for (std::size_t i = 0; i < 2; ++i) {
      NodeLinkOptions options;
      options.self = Certificates::name(i);
      options.members = members;
      options.metrics = &metrics[i];
      options.control_target = ntohs(echo_address.sin_port);
      options.handler = [this](const std::string&, BulkRequest&&) -> Result<std::unique_ptr<ChunkSource>> {
        return std::make_unique<Chunks>(chunk);
      };
      if (tls) {
        const std::string own = certificates.folder + "/" + options.self;
        const IdentityFiles files{own + "/ca.crt", own + "/node.crt", own + "/node.key"};
        options.identities = std::make_shared<IdentityKeeper>(
            files, options.self, Identity::load(files, options.self, std::time(nullptr)).value());
      }
      links[i] = NodeLink::start(std::move(options)).value();
    }
  }
  ~Pair() {
    for (auto& link : links) link->stop();
    ::close(echo_listener);
  }
  void fetch() {
    std::size_t bytes = 0;
    const auto meta = links[0]->fetch(
        "b", {},
        [&](std::uint64_t, std::vector<std::uint8_t>&& part) -> Status {
          bytes += part.size();
          return {};
        },
        kDeadlineMs);
    must(meta.has_value() && bytes == kAnswer, "fetch");
  }
  const std::vector<std::uint8_t> chunk;
  Certificates certificates;
  std::array<MetricsRegistry, 2> metrics;
  std::array<std::unique_ptr<NodeLink>, 2> links;
  sockaddr_in echo_address{};
  int echo_listener = -1;
};

void raw_tls(benchmark::State& state) {
  const Certificates certificates;
  const RawTls raw(certificates);
  std::vector<std::uint8_t> into(kChunk);
  for (auto _ : state)
    for (std::size_t i = 0; i < kAnswer / kChunk; ++i) raw.read(into.data(), into.size());
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kAnswer));
}

void link_bulk(benchmark::State& state) {
  Pair pair(state.range(0) != 0);
  pair.fetch();
  for (auto _ : state) pair.fetch();
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * kAnswer));
}

// Round trips of a small message through a tunnel, with (1) or without (0) bulk bytes beside it.
void control_round_trip(benchmark::State& state) {
  Pair pair(true);
  std::thread echo([&] {
    const int there = ::accept(pair.echo_listener, nullptr, nullptr);
    std::array<char, kPingBytes> bytes;
    for (ssize_t got = 0; (got = ::recv(there, bytes.data(), bytes.size(), 0)) > 0;)
      if (::send(there, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) break;
    ::close(there);
  });
  sockaddr_in address = pair.echo_address;
  address.sin_port = htons(pair.links[0]->control_port("b"));
  const int socket = connect_to(address);
  std::atomic<bool> stop{false};
  std::thread bulk([&] {
    while (state.range(0) != 0 && !stop.load()) pair.fetch();
  });
  std::vector<double> all;
  std::array<char, kPingBytes> ping{};
  for (auto _ : state)
    for (int i = 0; i < kPings; ++i) {
      const auto begun = std::chrono::steady_clock::now();
      must(::send(socket, ping.data(), ping.size(), MSG_NOSIGNAL) == kPingBytes &&
               ::recv(socket, ping.data(), ping.size(), MSG_WAITALL) == kPingBytes,
           "ping");
      all.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  stop.store(true);
  bulk.join();
  ::close(socket);
  echo.join();
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all[static_cast<std::size_t>(share * static_cast<double>(all.size() - 1))];
  };
  state.counters["median_us"] = at(0.5);
  state.counters["p99_us"] = at(0.99);
  state.counters["max_us"] = all.back();
}

}  // namespace

BENCHMARK(raw_tls)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(0.5);
BENCHMARK(link_bulk)->ArgName("tls")->Arg(1)->Arg(0)->Unit(benchmark::kMillisecond)->UseRealTime()->MinTime(0.5);
BENCHMARK(control_round_trip)
    ->ArgName("load")
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(2);

// A peer under TLS that is no node: OpenSSL on a plain socket that blocks, with whatever certificate a test gives it.
#pragma once

#include <csignal>
#include <string>
#include <utility>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "link/certificate.h"
#include "tests/unit/link/link_rig.h"

namespace gradtap::link::testing {

class TlsPeer {
 public:
  // shown: null for none. It accepts whatever the other side shows.
  TlsPeer(Socket socket, bool server, const CertifiedKey* shown, int newest_version = TLS1_3_VERSION)
      : socket_(std::move(socket)), context_(SSL_CTX_new(TLS_method())) {
    REQUIRE(context_ != nullptr);
    // OpenSSL's own socket raises it; the link must do without this.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    REQUIRE(SSL_CTX_set_max_proto_version(context_, newest_version) == 1);
    if (shown != nullptr) show(*shown);
    ssl_ = SSL_new(context_);
    REQUIRE(SSL_set_fd(ssl_, socket_.fd()) == 1);
    if (server)
      SSL_set_accept_state(ssl_);
    else
      SSL_set_connect_state(ssl_);
  }
  ~TlsPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  bool handshake() { return SSL_do_handshake(ssl_) == 1; }
  bool write(const std::vector<std::uint8_t>& bytes) {
    std::size_t sent = 0;
    return SSL_write_ex(ssl_, bytes.data(), bytes.size(), &sent) == 1;
  }
  bool read(std::uint8_t* to, std::size_t count) {
    while (count > 0) {
      std::size_t got = 0;
      if (SSL_read_ex(ssl_, to, count, &got) != 1) return false;
      to += got;
      count -= got;
    }
    return true;
  }
  bool write_frame(FrameType type, const std::vector<std::uint8_t>& header) {
    return write(frame_front(type, header, {}));
  }
  Result<Frame> read_frame() {
    std::array<std::uint8_t, kFrameHeadBytes> head;
    if (!read(head.data(), head.size())) return fail(ErrorCode::kPeerUnreachable, "closed");
    const auto parsed = parse_frame_head(head);
    if (!parsed) return std::unexpected<Error>(parsed.error());
    Frame frame{parsed->type, std::vector<std::uint8_t>(parsed->header_bytes),
                std::vector<std::uint8_t>(parsed->payload_bytes)};
    if (!read(frame.header.data(), frame.header.size()) || !read(frame.payload.data(), frame.payload.size()))
      return fail(ErrorCode::kPeerUnreachable, "cut");
    return frame;
  }
  // What the other side's alert says; waits for it.
  std::string alert() {
    std::uint8_t byte = 0;
    ERR_clear_error();
    if (read(&byte, 1)) return "no alert, but bytes";
    const char* const reason = ERR_reason_error_string(ERR_peek_error());
    return reason != nullptr ? reason : "closed without an alert";
  }
  const Socket& socket() const { return socket_; }
  std::string version() const { return SSL_get_version(ssl_); }

 private:
  void show(const CertifiedKey& shown) {
    BIO* const text = BIO_new_mem_buf(shown.certificate.data(), static_cast<int>(shown.certificate.size()));
    X509* const certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
    BIO* const secret = BIO_new_mem_buf(shown.key.data(), static_cast<int>(shown.key.size()));
    EVP_PKEY* const key = PEM_read_bio_PrivateKey(secret, nullptr, nullptr, nullptr);
    REQUIRE(SSL_CTX_use_certificate(context_, certificate) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey(context_, key) == 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
    BIO_free(text);
    BIO_free(secret);
  }

  Socket socket_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
};

}  // namespace gradtap::link::testing

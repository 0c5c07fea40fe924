#include "link/session.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "link/certificate_text.h"

namespace gradtap::link {
namespace {

// What one record of TLS holds at most.
constexpr std::size_t kRecordBytes = 16384;

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

std::unexpected<Error> gone(std::string_view doing, std::string why) {
  return fail(ErrorCode::kPeerUnreachable, fmt::format("cannot {}", doing), {}, {}, std::move(why),
              "check that the node runs and can be reached");
}

// OpenSSL's own socket would raise SIGPIPE.
int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int send_some(BIO* bio, const char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = ::send(socket_of(bio), bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL);
  if (sent < 0 && (would_block() || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int receive_some(BIO* bio, char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = ::recv(socket_of(bio), bytes, static_cast<std::size_t>(count), 0);
  if (got < 0 && (would_block() || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int begin(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "link socket");
    BIO_meth_set_write(made, send_some);
    BIO_meth_set_read(made, receive_some);
    BIO_meth_set_ctrl(made, control);
    BIO_meth_set_create(made, begin);
    return made;
  }();
  return method;
}

Refusal refusal_of(int verification) {
  switch (verification) {
    case X509_V_OK:
      return Refusal::kNone;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Refusal::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Refusal::kNotYetValid;
    default:
      return Refusal::kOtherAuthority;
  }
}

// Reasons for which the other side's alert says that it does not accept us.
bool is_refusal_alert(int reason) {
  switch (reason) {
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return true;
    default:
      return false;
  }
}

Refusal refusal_of_reason(int reason) {
  switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return Refusal::kNoCertificate;
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
      return Refusal::kPlainText;
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
      return Refusal::kOldProtocol;
    default:
      return Refusal::kMalformed;
  }
}

}  // namespace

std::string_view refusal_text(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kNoCertificate:
      return "the peer shows no certificate";
    case Refusal::kOtherAuthority:
      return "the peer's certificate is not of this cluster's authority";
    case Refusal::kExpired:
      return "the peer's certificate has expired";
    case Refusal::kNotYetValid:
      return "the peer's certificate is not valid yet";
    case Refusal::kWrongName:
      return "the peer's certificate has another name";
    case Refusal::kPlainText:
      return "the peer does not speak TLS";
    case Refusal::kOldProtocol:
      return "the peer speaks an older TLS than 1.3";
    case Refusal::kMalformed:
      return "the handshake of the peer is malformed";
  }
  return "unknown";
}

struct Session::Tls {
  std::shared_ptr<const Identity> identity;
  SslHandle ssl;
  BIO* bio = nullptr;  // of ssl
  Refusal refusal = Refusal::kNone;
  std::string shown;  // the certificate that was not accepted
  bool broken = false;

  // After a call that did not succeed.
  Result<Moved> judge(int answer, std::string_view doing) {
    const int failed_errno = errno;
    switch (SSL_get_error(ssl.get(), answer)) {
      case SSL_ERROR_WANT_READ:
        return Moved{0, Want::kRead, false};
      case SSL_ERROR_WANT_WRITE:
        return Moved{0, Want::kWrite, false};
      case SSL_ERROR_ZERO_RETURN:
        return Moved{0, Want::kNothing, true};
      case SSL_ERROR_SYSCALL:
        broken = true;
        ERR_clear_error();
        return gone(doing, failed_errno != 0 ? std::strerror(failed_errno) : "end of file");
      default:
        broken = true;
        return explain(doing);
    }
  }

  std::unexpected<Error> explain(std::string_view doing) {
    const unsigned long code = ERR_peek_error();
    const int reason = ERR_GET_REASON(code);
    std::string words = openssl_reason();
    if (ERR_GET_LIB(code) == ERR_LIB_SSL && reason == SSL_R_UNEXPECTED_EOF_WHILE_READING)
      return gone(doing, "end of file");
    if (is_refusal_alert(reason))
      return fail(ErrorCode::kPeerRefused, "the peer does not accept this node's certificate", {}, {}, std::move(words),
                  "see the peer's events; `gradtap ca show` tells what a certificate holds");
    if (refusal == Refusal::kNone) refusal = refusal_of_reason(reason);
    if (refusal == Refusal::kMalformed || refusal == Refusal::kPlainText || refusal == Refusal::kOldProtocol)
      return fail(ErrorCode::kPeerMalformed, std::string(refusal_text(refusal)), {}, "TLS 1.3", std::move(words),
                  "give all nodes the same security and version");
    return fail(ErrorCode::kPeerUntrusted, std::string(refusal_text(refusal)), {}, {},
                shown.empty() ? std::move(words) : shown, "gradtap ca issue or rotate; see docs/security.md");
  }
};

Session::Session() = default;
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Session::Session(std::shared_ptr<const Identity> identity, Side side) : tls_(std::make_unique<Tls>()) {
  tls_->ssl.reset(SSL_new(identity->context()));
  tls_->identity = std::move(identity);
  tls_->bio = BIO_new(socket_method());
  if (tls_->ssl == nullptr || tls_->bio == nullptr) {  // handshake() says so
    BIO_free(tls_->bio);
    tls_->bio = nullptr;
    return;
  }
  SSL_set_bio(tls_->ssl.get(), tls_->bio, tls_->bio);
  SSL_set_app_data(tls_->ssl.get(), tls_.get());
  if (side == Side::kCaller)
    SSL_set_connect_state(tls_->ssl.get());
  else
    SSL_set_accept_state(tls_->ssl.get());
}

int note_verification(int accepted, X509_STORE_CTX* context) {
  if (accepted == 1) return 1;
  auto* const ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* const tls = ssl != nullptr ? static_cast<Session::Tls*>(SSL_get_app_data(ssl)) : nullptr;
  if (tls == nullptr || tls->refusal != Refusal::kNone) return 0;
  const int why = X509_STORE_CTX_get_error(context);
  tls->refusal = refusal_of(why);
  // The peer's own certificate, whichever of its chain failed.
  X509* const own = X509_STORE_CTX_get0_cert(context);
  if (own == nullptr) return 0;
  const CertificateFacts facts = facts_of(own);
  tls->shown =
      fmt::format("\"{}\" of {}, valid {} to {}: {}", fmt::join(facts.names, "\", \""), facts.issuer,
                  time_text(facts.validity.from_s), time_text(facts.validity.to_s), X509_verify_cert_error_string(why));
  return 0;
}

Result<Want> Session::handshake(int socket) {
  if (tls_ == nullptr) return Want::kNothing;
  if (tls_->ssl == nullptr || tls_->bio == nullptr || tls_->broken)
    return fail(ErrorCode::kPeerUnreachable, "a TLS session cannot begin", {}, {}, openssl_reason());
  BIO_set_data(tls_->bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  ERR_clear_error();
  errno = 0;
  const int answer = SSL_do_handshake(tls_->ssl.get());
  if (answer == 1) return Want::kNothing;
  const Result<Moved> judged = tls_->judge(answer, "shake hands");
  if (!judged) return std::unexpected<Error>(judged.error());
  if (judged->ended) return gone("shake hands", "the peer ended");
  return judged->want;
}

Result<Moved> Session::read(int socket, std::span<std::uint8_t> to) {
  if (tls_ == nullptr) {
    for (;;) {
      const ssize_t got = ::recv(socket, to.data(), to.size(), 0);
      if (got > 0) return Moved{static_cast<std::size_t>(got), Want::kNothing, false};
      if (got == 0) return Moved{0, Want::kNothing, true};
      if (errno == EINTR) continue;
      if (would_block()) return Moved{0, Want::kRead, false};
      return gone("read", std::strerror(errno));
    }
  }
  if (tls_->broken) return gone("read", "the connection broke before");
  BIO_set_data(tls_->bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  ERR_clear_error();
  errno = 0;
  std::size_t got = 0;
  const int answer = SSL_read_ex(tls_->ssl.get(), to.data(), to.size(), &got);
  if (answer == 1) return Moved{got, Want::kNothing, false};
  return tls_->judge(answer, "read");
}

Result<Moved> Session::write(int socket, ByteSpan first, ByteSpan second) {
  if (tls_ == nullptr) {
    std::array<iovec, 2> parts = {{{const_cast<std::uint8_t*>(first.data()), first.size()},
                                   {const_cast<std::uint8_t*>(second.data()), second.size()}}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    for (;;) {
      const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
      if (sent >= 0) return Moved{static_cast<std::size_t>(sent), Want::kNothing, false};
      if (errno == EINTR) continue;
      if (would_block()) return Moved{0, Want::kWrite, false};
      return gone("write", std::strerror(errno));
    }
  }
  if (tls_->broken) return gone("write", "the connection broke before");
  BIO_set_data(tls_->bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  // A small first part does not go out as a record of its own.
  std::array<std::uint8_t, kRecordBytes> record;
  ByteSpan out = first.empty() ? second : first;
  if (!first.empty() && first.size() < record.size() && !second.empty()) {
    const std::size_t more = std::min(second.size(), record.size() - first.size());
    std::memcpy(record.data(), first.data(), first.size());
    std::memcpy(record.data() + first.size(), second.data(), more);
    out = ByteSpan(record.data(), first.size() + more);
  }
  if (out.empty()) return Moved{};
  ERR_clear_error();
  errno = 0;
  std::size_t sent = 0;
  const int answer = SSL_write_ex(tls_->ssl.get(), out.data(), out.size(), &sent);
  if (answer == 1) return Moved{sent, Want::kNothing, false};
  return tls_->judge(answer, "write");
}

Result<Want> Session::finish(int socket) {
  if (tls_ == nullptr || tls_->ssl == nullptr || tls_->broken || SSL_in_init(tls_->ssl.get()) != 0)
    return Want::kNothing;
  BIO_set_data(tls_->bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  ERR_clear_error();
  errno = 0;
  const int answer = SSL_shutdown(tls_->ssl.get());
  if (answer >= 0) return Want::kNothing;
  const Result<Moved> judged = tls_->judge(answer, "end a connection");
  if (!judged) return std::unexpected<Error>(judged.error());
  return judged->want;
}

bool Session::secure() const {
  return tls_ != nullptr;
}

bool Session::has_name(std::string_view name) const {
  if (tls_ == nullptr) return true;
  X509* const peer = SSL_get0_peer_certificate(tls_->ssl.get());
  bool found = false;
  if (peer != nullptr)
    for_each_alternative_name(peer, [&](bool is_dns, std::string_view value) { found |= is_dns && value == name; });
  return found;
}

std::string Session::peer_names() const {
  X509* const peer = tls_ != nullptr ? SSL_get0_peer_certificate(tls_->ssl.get()) : nullptr;
  if (peer == nullptr) return {};
  return fmt::format("\"{}\"", fmt::join(facts_of(peer).names, "\", \"")).substr(0, 256);
}

Refusal Session::refusal() const {
  return tls_ != nullptr ? tls_->refusal : Refusal::kNone;
}

bool Session::holds_bytes() const {
  return tls_ != nullptr && SSL_has_pending(tls_->ssl.get()) == 1;
}

const Identity* Session::identity() const {
  return tls_ != nullptr ? tls_->identity.get() : nullptr;
}

}  // namespace gradtap::link

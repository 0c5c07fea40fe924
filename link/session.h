// Session: how bytes pass through a connected socket that never blocks: as they are, or under TLS.
//
// Ownership: owns TLS's state, not the socket, which is named in every call and may pass from owner to owner together
// with the session. Threads: one at a time. Invariants: under TLS nothing is read or written before the handshake, in
// which both sides have shown a certificate of the cluster's authorities. Failure behaviour: PEER_UNREACHABLE when the
// other side goes away, PEER_UNTRUSTED when it shows no right certificate, PEER_REFUSED when it does not accept ours,
// PEER_MALFORMED for what is no TLS; refusal() says which. After an error the session is of no use.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/bytes.h"
#include "common/error.h"
#include "link/identity.h"

struct x509_store_ctx_st;

namespace gradtap::link {

// What the socket must be ready for before the call is repeated.
enum class Want : std::uint8_t { kNothing, kRead, kWrite };

enum class Side : std::uint8_t { kCaller, kAnswerer };

// Why a peer did not get through the handshake.
enum class Refusal : std::uint8_t {
  kNone,
  kNoCertificate,
  kOtherAuthority,
  kExpired,
  kNotYetValid,
  kWrongName,
  kPlainText,
  kOldProtocol,
  kMalformed,
};

struct Moved {
  std::size_t bytes = 0;
  Want want = Want::kNothing;  // set when bytes is 0 and nothing has ended
  bool ended = false;          // the peer will send no more, and said so
};

class Session {
 public:
  Session();  // plain
  Session(std::shared_ptr<const Identity> identity, Side side);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Plain: nothing to do.
  [[nodiscard]] Result<Want> handshake(int socket);
  [[nodiscard]] Result<Moved> read(int socket, std::span<std::uint8_t> to);
  // Of `first`, then of `second`. Once it wants something, the same bytes must come again.
  [[nodiscard]] Result<Moved> write(int socket, ByteSpan first, ByteSpan second);
  // Says that no more will be sent; what the peer still sends can be read. Plain: nothing to say.
  [[nodiscard]] Result<Want> finish(int socket);

  [[nodiscard]] bool secure() const;
  [[nodiscard]] bool has_name(std::string_view name) const;  // the peer's certificate; plain: any
  [[nodiscard]] std::string peer_names() const;              // for messages
  [[nodiscard]] Refusal refusal() const;
  [[nodiscard]] bool holds_bytes() const;  // read from the socket and not handed out yet
  [[nodiscard]] const Identity* identity() const;

 private:
  friend int note_verification(int accepted, x509_store_ctx_st* context);
  struct Tls;
  std::unique_ptr<Tls> tls_;
};

// OpenSSL's callback on every certificate of a chain; notes in the session why one was not accepted.
int note_verification(int accepted, x509_store_ctx_st* context);

[[nodiscard]] std::string_view refusal_text(Refusal refusal);

}  // namespace gradtap::link

#include "link/control_tunnel.h"

#include <utility>

#include "link/socket_options.h"

namespace gradtap::link {

ControlTunnel::ControlTunnel(std::shared_ptr<AsyncChannel> local, std::shared_ptr<AsyncChannel> remote,
                             std::size_t buffer_bytes, Counter& bytes, std::shared_ptr<void> held)
    : local_(std::move(local)),
      out_(std::move(remote)),
      in_(out_),
      there_(buffer_bytes),
      back_(buffer_bytes),
      bytes_(bytes),
      held_(std::move(held)) {}

void ControlTunnel::start() {
  local_->begin();
  tune_socket(local_->socket().native_handle());
  tune_socket(out_->socket().native_handle());
  read_local();
  read_remote();
}

void ControlTunnel::close() {
  closed_ = true;
  local_->close();
  out_->close();
  in_->close();
  if (next_ != nullptr) next_->close();
  held_.reset();
}

void ControlTunnel::read_local() {
  local_->read_some(there_, [self = shared_from_this()](Result<std::size_t> got) {
    const std::size_t count = got.value_or(0);
    if (count == 0) return self->close();
    self->write_remote(count);
  });
}

void ControlTunnel::write_remote(std::size_t count) {
  writing_ = true;
  out_->write(ByteSpan(there_.data(), count), [self = shared_from_this(), count](Status status) {
    self->writing_ = false;
    if (!status) return self->close();
    self->bytes_.add(count);
    if (self->next_ != nullptr) self->switch_out();
    self->read_local();
  });
}

void ControlTunnel::read_remote() {
  in_->read_some(back_, [self = shared_from_this()](Result<std::size_t> got) {
    const std::size_t count = got.value_or(0);
    if (count == 0) {
      if (!got || !self->renewing_) return self->close();
      self->in_ended_ = true;
      return self->switch_in();
    }
    self->local_->write(ByteSpan(self->back_.data(), count), [self, count](Status status) {
      if (!status) return self->close();
      self->bytes_.add(count);
      self->read_remote();
    });
  });
}

bool ControlTunnel::begin_renewal() {
  if (closed_ || renewing_) return false;
  renewing_ = true;
  return true;
}

void ControlTunnel::renew(std::shared_ptr<AsyncChannel> next) {
  if (closed_) return next->close();
  next_ = std::move(next);
  tune_socket(next_->socket().native_handle());
  if (!writing_) switch_out();
}

void ControlTunnel::abandon_renewal() {
  renewing_ = false;
  if (in_ended_) close();
}

void ControlTunnel::switch_out() {
  const std::shared_ptr<AsyncChannel> old = std::exchange(out_, std::move(next_));
  next_ = nullptr;
  since_ = std::chrono::steady_clock::now();
  old->finish([self = shared_from_this(), old](const Status& status) {
    if (!status) self->close();
  });
  switch_in();
}

// The old connection has been read to its end, and there is another one.
void ControlTunnel::switch_in() {
  if (!in_ended_ || in_ == out_ || closed_) return;
  in_ = out_;
  in_ended_ = false;
  renewing_ = false;
  read_remote();
}

}  // namespace gradtap::link

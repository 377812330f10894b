/*
 * Two ways through the steps of a forward program that a thread goes in turns: one multiplies while the
 * other's kernel is computed.
 */
#pragma once

#include <atomic>
#include <utility>

#include "chunks.h"

namespace graphopt::walks {

/* `Way` is the class derived from this one: BeginStep() and EndStep() surround a step's instructions, Fetch()
 * follows each of them, and IsOver() says that no step is left. */
template <typename T, typename Way>
class InTurns : public Executor<T, Way> {
  using Base = Executor<T, Way>;

 public:
  /* A step's products, while the other way's kernel is computed; its own kernel is taken down. */
  void MultiplyBeside(InTurns* other, Errand* errand) {
    Self().BeginStep();
    meanwhile_ = other->is_waiting_ ? &other->waiting_ : nullptr;
    for (size_t n = 0; n < leading_; n += p_.steps[n].together) {
      Base::Execute(p_.steps[n], n, p_.steps[n].together);
      Self().Fetch();
    }
    meanwhile_ = nullptr;
    Base::Take(p_.steps[leading_], errand, &waiting_);
    is_waiting_ = true;
  }

  /* What is left of the step. */
  void Settle() {
    if (!is_waiting_) return;
    is_waiting_ = false;
    size_t n = leading_;
    const int64_t done = waiting_.Settle();
    rows_beside_products += done;
    if (done < live_) Base::Call(p_.steps[n], done);
    while (++n < p_.steps.size()) {
      Base::Execute(p_.steps[n], n);
      Self().Fetch();
    }
    Self().EndStep();
  }

 protected:
  using Base::Base, Base::live_, Base::meanwhile_, Base::p_;

 private:
  Way& Self() { return *static_cast<Way*>(this); }

  const size_t leading_ = LeadingProducts(p_);
  Meanwhile waiting_;
  bool is_waiting_ = false;
};

/* Goes two ways in turns as long as `next(way)` starts one again, with an errand besides. */
template <typename Way, typename Next>
void RunInTurns(Way* one, Way* other, Errand* errand, const Next& next) {
  for (bool is_more = true; is_more; std::swap(one, other)) {
    while (one->IsOver() && next(one)) {
    }
    const bool is_over = one->IsOver();
    if (!is_over) one->MultiplyBeside(other, errand);
    other->Settle();
    is_more = !is_over || !other->IsOver();
  }
}

}  // namespace graphopt::walks

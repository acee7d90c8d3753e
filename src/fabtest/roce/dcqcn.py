"""DCQCN, the reaction point's half: a queue pair's rate, cut by CNPs and raised by time and bytes.

After "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015), section 3, as the HPCC simulator implements
it (rdma-hw.cc, CC_MODE 1). Rates are bit/s, times ns, sizes bytes. A lab that runs ``dilation`` times slower than the
fabric it stands for divides rates and multiplies times by that, and leaves bytes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Profile:
    """Parameters. Increases are bit/s at ``reference`` bit/s line rate, and grow with it if ``scaled``."""

    name: str
    alpha_period_ns: int
    decrease_interval_ns: int
    increase_timer_ns: int
    byte_counter: int
    g: float
    fast_recovery: int
    additive: float
    hyper: float
    cnp_interval_ns: int
    reference: float = 40e9
    scaled: bool = False
    min_rate: float = 100e6
    clamp_target: bool = True

    def at(self, line_rate: float, dilation: float = 1.0) -> Profile:
        """For a line rate (of the fabric, not of the dilated lab) and a dilation."""
        grow = line_rate / self.reference if self.scaled else 1.0
        return replace(
            self,
            alpha_period_ns=round(self.alpha_period_ns * dilation),
            decrease_interval_ns=round(self.decrease_interval_ns * dilation),
            increase_timer_ns=round(self.increase_timer_ns * dilation),
            cnp_interval_ns=round(self.cnp_interval_ns * dilation),
            additive=self.additive * grow / dilation,
            hyper=self.hyper * grow / dilation,
            min_rate=min(self.min_rate, line_rate / 100) / dilation,
        )


#: The paper's; NVIDIA's firmware defaults (DOCA DCQCN guide: alpha 1 us, decrease 4 us, g 5/1024, min rate 1 Mbit/s;
#: increases are the paper's, which the guide does not give); and HPCC's ``dcqcn`` (run.py: 1, 4, 300 us).
PROFILES: dict[str, Profile] = {
    "dcqcn-2015": Profile("dcqcn-2015", 55_000, 50_000, 55_000, 10_000_000, 1 / 256, 5, 40e6, 400e6, 50_000),
    "nvidia": Profile("nvidia", 1_000, 4_000, 300_000, 0, 5 / 1024, 1, 40e6, 400e6, 4_000, min_rate=1e6),
    "hpcc": Profile(
        "hpcc", 1_000, 4_000, 300_000, 0, 1 / 256, 1, 5e6, 50e6, 50_000, reference=25e9, scaled=True, clamp_target=False
    ),
}


class RateController:
    """The rate of one queue pair. Call ``advance`` before reading ``rate``."""

    def __init__(self, profile: Profile, line_rate: float, now: int = 0) -> None:
        self.profile = profile
        self.line_rate = line_rate
        self.rate = self.target = line_rate
        self.alpha = 1.0
        self._cnp_seen = False
        self._active = False
        self._cnp_in_period = False
        self._alpha_due = self._decrease_due = self._increase_due = now
        self._timer_stage = self._byte_stage = 0
        self._bytes = 0
        self.cuts = 0

    def cnp(self, now: int) -> None:
        """A CNP came in: cut, unless the last cut is younger than the decrease interval."""
        self.advance(now)
        self._cnp_in_period = True
        if not self._active:
            self._active = True
            self.alpha = 1.0
            self._alpha_due = now + self.profile.alpha_period_ns
            self._decrease_due = now
        if now < self._decrease_due:
            return
        if self.profile.clamp_target or self._timer_stage or self._byte_stage:
            self.target = self.rate
        self.rate = max(self.profile.min_rate, self.rate * (1 - self.alpha / 2))
        self._timer_stage = self._byte_stage = 0
        self._bytes = 0
        self._decrease_due = now + self.profile.decrease_interval_ns
        self._increase_due = now + self.profile.increase_timer_ns
        self.cuts += 1

    def sent(self, count: int) -> None:
        """So many bytes were sent: the byte counter may raise the rate."""
        if not self._active or not self.profile.byte_counter:
            return
        self._bytes += count
        while self._bytes >= self.profile.byte_counter:
            self._bytes -= self.profile.byte_counter
            self._byte_stage += 1
            self._increase()

    def advance(self, now: int) -> None:
        """Let time pass: alpha decays, the rate recovers."""
        if not self._active:
            return
        profile = self.profile
        while self._alpha_due <= now or self._increase_due <= now:
            if self._alpha_due <= self._increase_due:
                if self._cnp_in_period:
                    self.alpha = (1 - profile.g) * self.alpha + profile.g
                    self._cnp_in_period = False
                    periods = 1
                else:
                    # All periods without a CNP up to the next increase at once: they may be a microsecond each.
                    periods = (min(now, self._increase_due) - self._alpha_due) // profile.alpha_period_ns + 1
                    self.alpha *= (1 - profile.g) ** periods
                self._alpha_due += periods * profile.alpha_period_ns
            else:
                if profile.byte_counter:
                    self._timer_stage += 1
                    self._increase()
                else:
                    # With a timer only, HPCC's code judges the stage before it counts the event.
                    self._increase()
                    self._timer_stage += 1
                self._increase_due += profile.increase_timer_ns
            if self.rate >= self.line_rate and self.alpha < 1e-3:
                self._active = False
                return

    def _increase(self) -> None:
        profile = self.profile
        most, least = max(self._timer_stage, self._byte_stage), min(self._timer_stage, self._byte_stage)
        if not profile.byte_counter:
            least = most
        if most >= profile.fast_recovery:
            hyper = least > profile.fast_recovery
            self.target = min(self.line_rate, self.target + (profile.hyper if hyper else profile.additive))
        self.rate = min(self.line_rate, (self.rate + self.target) / 2)
        if self.line_rate - self.rate < self.line_rate * 1e-4:
            self.rate = self.line_rate

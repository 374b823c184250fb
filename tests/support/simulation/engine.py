"""A worker's engine: looks up prompts, computes what is missing, publishes it."""

from collections.abc import Callable
from itertools import count

from kvstore_client import Acquired, Client, Match, Namespace, PageRef, Reservation, errors
from simulation.device import Device
from simulation.kernel import Kernel, Violation
from simulation.node import PAGE_TOKENS
from simulation.pages import Look, Oracle, Place, Tokens, User, keys_of, next_token_of, page_bytes
from simulation.sockets import SimProcess

# Mean seconds between two looks at a page that is held, and between two requests.
MEAN_LOOK = 0.01
MEAN_PAUSE = 0.03
MOST_TOKENS = 22
# How often a request waits for what another computes, at most.
MOST_YIELDS = 4
# How often a request is given up by whoever made it, as its pages are written.
CANCELLED = 0.05


class Engine:
    """One thread of a worker.

    ``number`` tells it from all others; ``busy`` says whether more requests are to come.
    """

    def __init__(
        self,
        kernel: Kernel,
        process: SimProcess,
        client: Client,
        namespace: Namespace,
        *,
        device: Device,
        oracle: Oracle,
        number: int,
        busy: Callable[[], bool],
    ) -> None:
        self.idle = False
        self.hits = 0
        self._kernel, self._process, self._client = kernel, process, client
        self._namespace, self._device, self._oracle, self._busy = namespace, device, oracle, busy
        self._tenant = f"uid-{process.uid}"
        self._number = number
        self._versions = count(1)
        self._epoch = 0
        self._source_user = User(process, "none")

    def run(self) -> None:
        """Serves requests for as long as there are some."""
        while self._busy():
            chance = self._kernel.random.random()
            if chance < 0.6:
                self.serve(self.prompt())
            elif chance < 0.85:
                self._look_up(self.prompt())
            elif chance < 0.95:
                self._continue(self.prompt())
            else:
                self._namespace.peek(self.prompt())
            self._kernel.sleep(self._kernel.random.expovariate(1 / MEAN_PAUSE))
        self.idle = True

    def prompt(self) -> Tokens:
        """Returns a prompt; many begin alike, and part anywhere."""
        chance = self._kernel.random
        length = chance.randint(2, MOST_TOKENS)
        return tuple(1 if chance.random() < 0.93 else 2 for _ in range(length))

    # Requests.

    def serve(self, prompt: Tokens) -> None:
        """Does as an engine does with a prompt: match, compute, publish, let go."""
        pages = -(-len(prompt) // PAGE_TOKENS)
        acquired = self._acquire(prompt, pages)
        user = User(self._process, f"{self._process.name} acquire")
        try:
            looks = self._looks_of(user, acquired.match, prompt)
            if acquired.reservation is not None:
                self._compute(user, acquired.reservation, acquired.match, prompt, looks)
            self._linger(looks)
            if not acquired.current:
                raise Violation("by its generation a page that is held was recycled")
        finally:
            self._end(user, acquired.release)

    def _acquire(self, prompt: Tokens, pages: int) -> Acquired:
        """Acquires, often after a wait, holding nothing, for whoever computes more of it."""
        greedy = self._kernel.random.random() < 0.5
        patience = self._kernel.random.choice((0, 1, MOST_YIELDS))
        while True:
            acquired = self._namespace.acquire(
                prompt,
                total_page_count=pages,
                accept_next_token=greedy,
                yield_to_in_flight=patience > 0,
            )
            found = acquired.in_flight
            if patience == 0 or found is None:
                return acquired
            if acquired.holds or acquired.match.token_count:
                raise Violation("an acquire that yielded holds something")
            if not found.inserted_token_count < found.token_count < len(prompt):
                raise Violation("what is waited for would not be matched")
            self._oracle.yields += 1
            patience -= 1
            self._kernel.sleep(self._kernel.random.expovariate(1 / MEAN_LOOK))

    def _look_up(self, prompt: Tokens) -> None:
        match = self._namespace.match(prompt, accept_next_token=True)
        user = User(self._process, f"{self._process.name} match")
        try:
            self._linger(self._looks_of(user, match, prompt))
        finally:
            self._end(user, match.release)

    def _continue(self, prompt: Tokens) -> None:
        """Match, and reserve on one's own, growing as one goes."""
        match = self._namespace.match(prompt)
        user = User(self._process, f"{self._process.name} reserve")
        try:
            looks = self._looks_of(user, match, prompt)
            start = match.token_count // PAGE_TOKENS
            pages = -(-len(prompt) // PAGE_TOKENS) - start
            reservation = self._namespace.reserve(start_page=start, page_count=1)
            writer = User(self._process, f"{self._process.name} reservation")
            try:
                reservation.grow(pages)
                self._compute(writer, reservation, match, prompt, looks)
                self._linger(looks)
            finally:
                self._end(writer, reservation.abort)
        except errors.StoreError:
            pass
        finally:
            self._end(user, match.release)

    def _end(self, user: User, release: Callable[[], None]) -> None:
        """Give something back; the oracle hears of it when the client has waited for the device."""
        if self._process.alive:
            source = self._source_user

            def ended() -> None:
                self._oracle.ended(user)
                self._oracle.ended(source)

            self._device.then(ended)
            release()
            ended()  # where there was nothing to give back, and no wait

    # What a request is made of.

    def _looks_of(self, user: User, match: Match, prompt: Tokens) -> list[Look]:
        if not match.holds:
            return []
        self._epoch = match.holds[0].session.store_epoch
        if match.token_count != len(match.pages) * PAGE_TOKENS:
            raise Violation("a match has other tokens than its pages")
        copied = 0 if match.source is None else match.source.token_count
        if match.token_count + copied >= len(prompt) and match.next_token is None:
            raise Violation("a match leaves an engine nothing to run, and no next token")
        looks = [
            self._look(page, keys_of(self._tenant, prompt, index, PAGE_TOKENS))
            for index, page in enumerate(match.pages)
        ]
        self._oracle.reading(user, [Place(self._epoch, each) for each in match.pages])
        self.hits += bool(looks)
        if match.source is not None:
            source = match.source
            keys = keys_of(self._tenant, prompt, len(match.pages), source.token_count)
            looks.append(self._look(source.page, keys))
            self._source_user = User(self._process, f"{user.what}'s source")
            self._oracle.reading(self._source_user, [Place(self._epoch, source.page)])
        if match.next_token is not None and match.next_token != next_token_of(self._tenant, prompt):
            raise Violation("a match has another path's next token")
        for look in looks:
            look.check(user.what)
        return looks

    def _compute(
        self,
        user: User,
        reservation: Reservation,
        match: Match,
        prompt: Tokens,
        looks: list[Look],
    ) -> None:
        """Writes the pages of a reservation, publishing them in one or more inserts."""
        if not reservation.pages:
            return
        self._epoch = reservation.hold.session.store_epoch
        first = reservation.start_page
        self._oracle.granted(user, [Place(self._epoch, each) for each in reservation.pages])
        position = first * PAGE_TOKENS
        if match.source is not None and self._kernel.random.random() < 0.5:
            # A source goes back as soon as it was copied.
            looks.pop()
            self._end(self._source_user, match.source.release)
        while position < len(prompt):
            page = position // PAGE_TOKENS
            upto = self._kernel.random.randint(page + 1, -(-len(prompt) // PAGE_TOKENS))
            end = min(upto * PAGE_TOKENS, len(prompt))
            pages = reservation.pages[page - first : upto - first]
            for index, each in enumerate(pages, start=page):
                self._write(user, each, prompt[:end], index)
            if self._kernel.random.random() < CANCELLED:
                return  # while the device still writes
            if not self._publish(user, reservation, match, prompt[:end], position, pages, looks):
                return
            position = end

    def _write(self, user: User, page: PageRef, path: Tokens, index: int) -> None:
        tokens = min(len(path) - index * PAGE_TOKENS, PAGE_TOKENS)
        content = page_bytes(
            keys_of(self._tenant, path, index, tokens), self._number, next(self._versions)
        )
        place = Place(self._epoch, page)
        self._device.write(user, place, self._namespace.page(page), content)

    def _publish(
        self,
        user: User,
        reservation: Reservation,
        match: Match,
        path: Tokens,
        position: int,
        pages: list[PageRef],
        looks: list[Look],
    ) -> bool:
        """Inserts pages; returns whether it came through, so that more may follow."""
        mine = [Place(self._epoch, each) for each in pages]
        next_token = None
        if self._kernel.random.random() < 0.5:
            next_token = next_token_of(self._tenant, path)
        first = position == reservation.start_page * PAGE_TOKENS
        for _ in range(2):
            self._device.then(lambda: self._oracle.offered(user, mine))
            try:
                inserted = reservation.insert(
                    path[position:],
                    position=position,
                    base=match if first and match.pages else None,
                    next_token=next_token,
                )
            except errors.StoreTimedOut:
                self._kernel.sleep(self._kernel.random.expovariate(1 / MEAN_PAUSE))
            except errors.PageRecycled as error:
                raise Violation(str(error)) from None
            except errors.StoreError:
                return False
            else:
                break
        else:
            return False
        places = [Place(self._epoch, each) for each in inserted.pages]
        self._oracle.reading(user, places)
        start = position // PAGE_TOKENS
        for index, page in enumerate(inserted.pages, start=start):
            tokens = min(len(path) - index * PAGE_TOKENS, PAGE_TOKENS)
            if reservation.hold.session.extents.get(page.extent_id) is not None:
                looks.append(self._look(page, keys_of(self._tenant, path, index, tokens)))
        return True

    def _look(self, page: PageRef, keys: tuple[bytes, ...]) -> Look:
        return Look(self._oracle, lambda: self._namespace.page(page), keys)

    def _linger(self, looks: list[Look]) -> None:
        """Looks at what is held, now and again."""
        for _ in range(self._kernel.random.randint(0, 3) if looks else 0):
            self._kernel.sleep(self._kernel.random.expovariate(1 / MEAN_LOOK))
            self._kernel.random.choice(looks).check(self._process.name)
        for look in looks:
            look.check(self._process.name)

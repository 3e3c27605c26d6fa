"""Words and sentence frames of the corpus as (German, English) pairs; frames have {slots}."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """The German forms of a verb in the third person singular, and its English forms.

    ``prefix`` is the separable part of the German verb.
    """

    finite: str
    prefix: str
    infinitive: str
    auxiliary: str
    participle: str
    base: str
    present: str
    past: str


_LEAVE = Verb("fährt", "ab", "abfahren", "ist", "abgefahren", "leave", "leaves", "left")
_ARRIVE = Verb("kommt", "an", "ankommen", "ist", "angekommen", "arrive", "arrives", "arrived")
_START = Verb("fängt", "an", "anfangen", "hat", "angefangen", "start", "starts", "started")
_BEGIN = Verb("beginnt", "", "beginnen", "hat", "begonnen", "begin", "begins", "began")
_END = Verb("endet", "", "enden", "hat", "geendet", "end", "ends", "ended")
_OPEN = Verb("macht", "auf", "aufmachen", "hat", "aufgemacht", "open", "opens", "opened")
_CLOSE = Verb("schließt", "", "schließen", "hat", "geschlossen", "close", "closes", "closed")
_CALL = Verb("ruft", "an", "anrufen", "hat", "angerufen", "call", "calls", "called")
_RETURN = Verb(
    *("kommt", "zurück", "zurückkommen", "ist", "zurückgekommen"),
    *("come back", "comes back", "came back"),
)
_TAKE_PLACE = Verb(
    *("findet", "statt", "stattfinden", "hat", "stattgefunden"),
    *("take place", "takes place", "took place"),
)
_GET_UP = Verb("steht", "auf", "aufstehen", "ist", "aufgestanden", "get up", "gets up", "got up")
_FALL_ASLEEP = Verb(
    *("schläft", "ein", "einschlafen", "ist", "eingeschlafen"),
    *("fall asleep", "falls asleep", "fell asleep"),
)

_Subjects = tuple[tuple[str, str], ...]
_TRANSPORT: _Subjects = (
    *(("der Zug", "the train"), ("der Bus", "the bus"), ("die Fähre", "the ferry")),
    *(("der Nachtzug", "the night train"), ("der Zug nach Köln", "the train to Cologne")),
)
_HAPPENINGS: _Subjects = (
    *(("der Film", "the film"), ("das Konzert", "the concert"), ("die Sitzung", "the meeting")),
    *(("der Kurs", "the course"), ("die Prüfung", "the exam"), ("das Spiel", "the match")),
)
_PLACES: _Subjects = (
    *(("der Laden", "the shop"), ("das Museum", "the museum"), ("die Bäckerei", "the bakery")),
    *(("die Bibliothek", "the library"), ("das Schwimmbad", "the swimming pool")),
)
_PEOPLE: _Subjects = (
    *(("Anna", "Anna"), ("Paul", "Paul"), ("meine Tante", "my aunt")),
    *(("mein Bruder", "my brother"), ("der Arzt", "the doctor")),
)
DATED_EVENTS: tuple[tuple[_Subjects, tuple[Verb, ...]], ...] = (
    (_TRANSPORT, (_LEAVE, _ARRIVE)),
    (_HAPPENINGS, (_START, _BEGIN, _END, _TAKE_PLACE)),
    (_PLACES, (_OPEN, _CLOSE)),
    (_PEOPLE, (_ARRIVE, _CALL, _RETURN)),
)
DAILY_EVENTS = (*DATED_EVENTS, (_PEOPLE, (_GET_UP, _FALL_ASLEEP)))

LEADS = (
    ("er sagt, dass", "he says that"),
    ("sie glaubt, dass", "she believes that"),
    ("ich weiß, dass", "I know that"),
    ("es stimmt, dass", "it is true that"),
    ("ich frage mich, ob", "I wonder whether"),
)
MODALS = (("soll", "is supposed to"), ("wird", "will"))

# {n} is the number, {x} is the counted thing.
COUNT_FRAMES = (
    ("sie kauft {n} {x}", "she buys {n} {x}"),
    ("er hat gestern {n} {x} gekauft", "he bought {n} {x} yesterday"),
    ("auf dem Tisch liegen {n} {x}", "there are {n} {x} on the table"),
    ("wir brauchen morgen {n} {x}", "we need {n} {x} tomorrow"),
    ("sie sagt, dass sie {n} {x} bestellt hat", "she says that she ordered {n} {x}"),
    ("kannst du mir {n} {x} mitbringen?", "can you bring me {n} {x}?"),
    ("weil {n} {x} fehlen, müssen wir warten", "we have to wait because {n} {x} are missing"),
    ("in der Kiste waren {n} {x}", "there were {n} {x} in the box"),
)
THINGS = (
    *(("Äpfel", "apples"), ("Eier", "eggs"), ("Bücher", "books"), ("Karten", "tickets")),
    *(("Nägel", "nails"), ("Fotos", "photos"), ("Flaschen", "bottles"), ("Blumen", "flowers")),
    *(("Tassen", "cups"), ("Teller", "plates"), ("Schrauben", "screws"), ("Hefte", "notebooks")),
)
LARGE_COUNT_FRAMES = (
    ("die Stadt hat {n} Einwohner", "the town has {n} inhabitants"),
    ("in dieser Gegend wohnen {n} Menschen", "{n} people live in this area"),
    ("letztes Jahr wurden {n} Fahrräder verkauft", "{n} bicycles were sold last year"),
    ("die Bibliothek besitzt {n} Bücher", "the library owns {n} books"),
    (
        "er behauptet, dass er {n} Briefmarken gesammelt hat",
        "he claims that he has collected {n} stamps",
    ),
    ("zum Fest kamen {n} Besucher", "{n} visitors came to the festival"),
)
STOCK_FRAMES = (
    ("die Firma hat {n} {x} bestellt", "the company ordered {n} {x}"),
    ("im Lager liegen noch {n} {x}", "there are still {n} {x} in the warehouse"),
    ("letzte Woche wurden {n} {x} geliefert", "{n} {x} were delivered last week"),
    ("er behauptet, dass {n} {x} gefehlt haben", "he claims that {n} {x} were missing"),
)
BARE_NUMBER_FRAMES = (
    ("das Ergebnis lautet {n}", "the result is {n}"),
    ("auf dem Schild steht die Zahl {n}", "the sign shows the number {n}"),
    ("ich glaube, dass die Antwort {n} ist", "I believe that the answer is {n}"),
)
ROOM_FRAMES = (
    ("sie wohnt in Zimmer {n}", "she is staying in room {n}"),
    ("der Schlüssel gehört zu Zimmer {n}", "the key belongs to room {n}"),
    ("in Zimmer {n} brennt noch Licht", "the light is still on in room {n}"),
)
OPERATIONS = (("plus", "plus"), ("minus", "minus"), ("mal", "times"))
SUM_FRAMES = (
    ("{a} {op} {b} ist {c}", "{a} {op} {b} is {c}"),
    ("wie viel ist {a} {op} {b}?", "what is {a} {op} {b}?"),
    ("er weiß, dass {a} {op} {b} {c} ergibt", "he knows that {a} {op} {b} makes {c}"),
)

# (subject, participle, English clause, earliest and latest year)
HISTORY = (
    ("die Brücke", "gebaut", "the bridge was built", 1700, 2020),
    ("das Museum", "eröffnet", "the museum was opened", 1800, 2020),
    ("die Kirche", "geweiht", "the church was consecrated", 1100, 1980),
    ("das Rathaus", "renoviert", "the town hall was renovated", 1600, 2025),
    ("das Schloss", "verkauft", "the castle was sold", 1500, 2025),
    ("die Firma", "gegründet", "the company was founded", 1850, 2025),
    ("der Vertrag", "unterschrieben", "the contract was signed", 1700, 2025),
    ("das alte Haus", "abgerissen", "the old house was torn down", 1800, 2025),
    ("meine Großmutter", "geboren", "my grandmother was born", 1910, 1965),
    ("sein Vater", "geboren", "his father was born", 1930, 1995),
)

# (nominative, accusative, English, lowest and highest price in whole euros)
GOODS = (
    ("das Brot", "das Brot", "the bread", 1, 6),
    ("der Kaffee", "den Kaffee", "the coffee", 1, 8),
    ("die Zeitung", "die Zeitung", "the newspaper", 0, 5),
    ("das Eis", "das Eis", "the ice cream", 0, 7),
    ("der Apfel", "den Apfel", "the apple", 0, 1),
    ("das Buch", "das Buch", "the book", 5, 60),
    ("die Jacke", "die Jacke", "the jacket", 20, 99),
    ("der Hut", "den Hut", "the hat", 8, 90),
    ("die Lampe", "die Lampe", "the lamp", 10, 99),
    ("der Rucksack", "den Rucksack", "the backpack", 15, 99),
    ("das Fahrrad", "das Fahrrad", "the bicycle", 150, 4_000),
    ("das Sofa", "das Sofa", "the sofa", 200, 5_000),
    ("das Klavier", "das Klavier", "the piano", 1_000, 40_000),
    ("das Auto", "das Auto", "the car", 1_000, 90_000),
)
PRICE_FRAMES = (
    ("{nominative} kostet {n}", "{item} costs {n}"),
    ("für {accusative} habe ich {n} bezahlt", "I paid {n} for {item}"),
    ("im Angebot kostet {nominative} nur {n}", "on sale, {item} costs only {n}"),
    ("er sagt, dass {nominative} {n} kostet", "he says that {item} costs {n}"),
    ("kostet {nominative} wirklich {n}?", "does {item} really cost {n}?"),
    ("gestern hat {nominative} noch {n} gekostet", "yesterday {item} still cost {n}"),
    ("sie hat {accusative} für {n} verkauft", "she sold {item} for {n}"),
)

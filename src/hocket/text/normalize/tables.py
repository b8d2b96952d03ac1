"""Tables for the rules of `english`."""

from __future__ import annotations

#: Singular and plural.
Noun = tuple[str, str]

#: Symbols that stand between words and have a name of their own.
SYMBOLS: dict[str, str] = {
    "&": "and",
    "@": "at",
    "+": "plus",
    "=": "equals",
    "<": "less than",
    ">": "greater than",
    "%": "percent",
    "≤": "less than or equal to",
    "≥": "greater than or equal to",
    "≠": "is not equal to",
    "≈": "about",
    "±": "plus or minus",
    "÷": "divided by",
    "√": "square root of",
    "∞": "infinity",
    "→": "to",
    "←": "from",
    "∆": "delta",
    "∑": "sum of",
    "‰": "per mille",
    "§": "section",
}

#: The currency and its hundredth, by symbol.
CURRENCIES: dict[str, tuple[Noun, Noun | None]] = {
    "$": (("dollar", "dollars"), ("cent", "cents")),
    "£": (("pound", "pounds"), ("penny", "pence")),
    "€": (("euro", "euros"), ("cent", "cents")),
    "¥": (("yen", "yen"), None),
    "₹": (("rupee", "rupees"), ("paisa", "paise")),
    "₩": (("won", "won"), None),
    "₽": (("ruble", "rubles"), ("kopek", "kopeks")),
    "₺": (("lira", "lira"), None),
    "₴": (("hryvnia", "hryvnias"), None),
    "₦": (("naira", "naira"), None),
    "₫": (("dong", "dong"), None),
    "₪": (("shekel", "shekels"), None),
    "₿": (("bitcoin", "bitcoins"), None),
}
#: Countries of dollars, by the letters before the sign.
DOLLARS = {
    "US": "U S",
    "CA": "Canadian",
    "C": "Canadian",
    "AU": "Australian",
    "A": "Australian",
    "NZ": "New Zealand",
    "HK": "Hong Kong",
    "S": "Singapore",
}
#: Currencies by ISO 4217 code.
CURRENCY_CODES: dict[str, tuple[Noun, Noun | None]] = {
    "USD": (("U S dollar", "U S dollars"), ("cent", "cents")),
    "EUR": CURRENCIES["€"],
    "GBP": (("British pound", "British pounds"), ("penny", "pence")),
    "JPY": CURRENCIES["¥"],
    "CHF": (("Swiss franc", "Swiss francs"), ("centime", "centimes")),
    "CNY": (("yuan", "yuan"), None),
    "INR": (("Indian rupee", "Indian rupees"), ("paisa", "paise")),
    "AUD": (("Australian dollar", "Australian dollars"), ("cent", "cents")),
    "CAD": (("Canadian dollar", "Canadian dollars"), ("cent", "cents")),
    "NZD": (("New Zealand dollar", "New Zealand dollars"), ("cent", "cents")),
    "SEK": (("Swedish krona", "Swedish kronor"), None),
    "NOK": (("Norwegian krone", "Norwegian kroner"), None),
    "DKK": (("Danish krone", "Danish kroner"), None),
    "PLN": (("Polish zloty", "Polish zloty"), None),
    "BRL": (("Brazilian real", "Brazilian reais"), None),
    "MXN": (("Mexican peso", "Mexican pesos"), None),
    "ZAR": (("South African rand", "South African rand"), None),
    "SGD": (("Singapore dollar", "Singapore dollars"), ("cent", "cents")),
    "HKD": (("Hong Kong dollar", "Hong Kong dollars"), ("cent", "cents")),
    "BTC": CURRENCIES["₿"],
}
#: Magnitudes directly after an amount of money.
MAGNITUDES = {
    "k": "thousand",
    "K": "thousand",
    "m": "million",
    "M": "million",
    "mn": "million",
    "bn": "billion",
    "B": "billion",
    "b": "billion",
    "tn": "trillion",
    "T": "trillion",
}

#: Units after a number. Ambiguous ones ("in", "A", "C", "G") are left out.
UNITS: dict[str, Noun] = {
    "mm": ("millimeter", "millimeters"),
    "cm": ("centimeter", "centimeters"),
    "m": ("meter", "meters"),
    "km": ("kilometer", "kilometers"),
    "μm": ("micrometer", "micrometers"),
    "nm": ("nanometer", "nanometers"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "mi": ("mile", "miles"),
    "mg": ("milligram", "milligrams"),
    "μg": ("microgram", "micrograms"),
    "g": ("gram", "grams"),
    "kg": ("kilogram", "kilograms"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "cl": ("centiliter", "centiliters"),
    "dL": ("deciliter", "deciliters"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "gal": ("gallon", "gallons"),
    "ms": ("millisecond", "milliseconds"),
    "μs": ("microsecond", "microseconds"),
    "ns": ("nanosecond", "nanoseconds"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "yr": ("year", "years"),
    "yrs": ("year", "years"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "kB": ("kilobyte", "kilobytes"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "KiB": ("kibibyte", "kibibytes"),
    "MiB": ("mebibyte", "mebibytes"),
    "GiB": ("gibibyte", "gibibytes"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"),
    "GW": ("gigawatt", "gigawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "mV": ("millivolt", "millivolts"),
    "mA": ("milliampere", "milliamperes"),
    "mAh": ("milliampere hour", "milliampere hours"),
    "Pa": ("pascal", "pascals"),
    "kPa": ("kilopascal", "kilopascals"),
    "hPa": ("hectopascal", "hectopascals"),
    "cal": ("calorie", "calories"),
    "kcal": ("kilocalorie", "kilocalories"),
    "dB": ("decibel", "decibels"),
    "ha": ("hectare", "hectares"),
    "px": ("pixel", "pixels"),
    "fps": ("frame per second", "frames per second"),
    "mph": ("mile per hour", "miles per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "ppm": ("part per million", "parts per million"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "%": ("percent", "percent"),
}
#: Units after a slash.
PER = {
    **{unit: one for unit, (one, _) in UNITS.items() if unit.isalpha()},
    "wk": "week",
    "mo": "month",
    **{
        word: word
        for word in (  # noqa: SIM905
            "hour day week month year person night minute second mile unit user piece page"
        ).split()
    },
}

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
DAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
    "Sat": "Saturday",
    "Sun": "Sunday",
}

#: Titles before a name; their full stop never ends a sentence.
TITLES = {
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miss",
    "Dr": "Doctor",
    "Prof": "Professor",
    "Gen": "General",
    "Col": "Colonel",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Pres": "President",
    "St": "Saint",
    "Mt": "Mount",
    "Ft": "Fort",
}
#: Kinds of streets after a name.
STREETS = {"St": "Street", "Dr": "Drive"}
#: Abbreviations with a full stop, in any place.
ABBREVIATIONS = {
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "vs": "versus",
    "viz": "namely",
    "cf": "compare",
    "et al": "and others",
    "ph.d": "P H D",
    "approx": "approximately",
    "dept": "department",
    "inc": "incorporated",
    "ltd": "limited",
    "corp": "corporation",
    "co": "company",
    "ave": "avenue",
    "blvd": "boulevard",
    "rd": "road",
    "ln": "lane",
    "jr": "junior",
    "sr": "senior",
    "vol": "volume",
    "fig": "figure",
    "tel": "telephone",
    "ext": "extension",
    "min": "minimum",
    "max": "maximum",
    "avg": "average",
    "incl": "including",
    "excl": "excluding",
    "misc": "miscellaneous",
    "univ": "university",
    "govt": "government",
}
#: Those of them that never end a sentence.
NEVER_LAST = frozenset({"vs", "e.g", "i.e", "viz", "cf", "approx", "incl", "excl"})
#: Abbreviations with a full stop before a number.
BEFORE_NUMBERS = {
    "no": "number",
    "nos": "numbers",
    "p": "page",
    "pp": "pages",
    "ch": "chapter",
    "sec": "section",
    "eq": "equation",
    "ca": "circa",
    "c": "circa",
    "art": "article",
}
#: Abbreviations without a full stop, in exactly this spelling.
WRITTEN_WORDS = {
    "vs": "versus",
    "w/o": "without",
    "w/": "with",
    "b/c": "because",
    "n/a": "not applicable",
    "N/A": "not applicable",
    "aka": "also known as",
    "PhD": "P H D",
    "OK": "okay",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miss",
    "Dr": "Doctor",
    "Prof": "Professor",
    "C++": "C plus plus",
    "C#": "C sharp",
    "F#": "F sharp",
    "tsp": "teaspoon",
    "tbsp": "tablespoon",
    "WWI": "World War one",
    "WWII": "World War two",
    "24/7": "twenty-four seven",
    "9/11": "nine eleven",
}

#: Words of capitals that are pronounced as words: acronyms, and words often written in capitals for
#: emphasis.
SAID_AS_WORDS = frozenset(
    (  # noqa: SIM905 - two hundred quoted words are harder to read
        "NASA NATO UNESCO UNICEF OPEC AIDS NAFTA FIFA UEFA FEMA OSHA SWAT ASCII RAM ROM SIM PIN "
        "LAN WAN GIF JPEG COVID "
        "SARS MERS LASER RADAR SCUBA SONAR ASAP NASDAQ EBITDA LIDAR TASER CAPTCHA MIDI NIMBY YOLO "
        "FOMO "
        "A I AM AN AND ANY ARE AS AT BE BIG BUT BUY BY CAN DAY DID DO DOG EAT END FAR FOR FUN GET "
        "GO GOD GOT HAD HAS "
        "HE HER HEY HI HIM HIS HOT HOW IF IN IS JOB LET LOL LOT MAN MAY ME MEN MY NEW NO NOT NOW "
        "OF OFF OH OLD ON ONE "
        "OR OUR OUT OWN PAY PUT RED RUN SAD SAY SEE SET SHE SIX SO STOP TEN THE TO TOO TOP TRY TWO "
        "UP USE WAR WAS WAY "
        "WE WHO WHY WIN WON WOW YES YET YOU ALL ALSO AWAY BACK BAD BEEN BEST BOTH CALL COME DEAD "
        "DONE DOWN EACH EVEN "
        "EVER FAST FREE FROM FULL GAVE GIVE GOES GOOD GREAT HARD HAVE HEAR HELP HERE HIGH HOLD "
        "HOME HOPE JUST KEEP "
        "KNOW LAST LATE LESS LIFE LIKE LIVE LONG LOOK LOST LOVE MADE MAKE MANY MIND MORE MOST MUCH "
        "MUST NEAR NEED "
        "NEVER NEXT NICE ONCE ONLY OPEN OVER PART PAST PLAN REAL REST SAFE SAID SALE SAME SAVE "
        "SOME SOON SUCH SURE "
        "TAKE TALK TELL THAN THAT THEM THEN THEY THING THINK THIS TIME TRUE TURN UNDER UNTIL VERY "
        "WAIT WANT WARN WELL "
        "WENT WERE WHAT WHEN WHERE WHICH WHILE WHO WHOLE WILL WITH WORD WORK WORLD WOULD WRONG "
        "YEAR YOUR ABOUT AFTER "
        "AGAIN ALONE COULD EVERY FIRST RIGHT SHALL SHOULD STILL THANK THEIR THERE THESE THOSE "
        "THREE TODAY"
    ).split()
)
#: Names and nouns that carry a Roman numeral.
REGNAL = frozenset(
    (  # noqa: SIM905
        "Henry Louis Elizabeth George Charles James Edward Richard William Mary Paul Pius Benedict "
        "Philip Catherine "
        "Alexander Nicholas Frederick Wilhelm Napoleon Leo Gregory Clement Ivan Peter Francis "
        "Margaret Christian Gustav"
    ).split()
)
NUMBERED = frozenset(
    (  # noqa: SIM905
        "War Chapter Part Act Scene Volume Book Phase Type Section Title Article Appendix Table "
        "Figure Class Mark "
        "Level Bowl Stage Grade Group Division Episode Season Lesson Unit Apollo"
    ).split()
)

#: Domains by which a web address is recognised without "www" or "https".
DOMAINS = "com org net edu gov io ai co uk us ca de fr eu info dev app me tv".split()  # noqa: SIM905

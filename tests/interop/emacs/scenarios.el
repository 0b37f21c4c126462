;;; scenarios.el --- What Emacs sees of the daemon  -*- lexical-binding: t; -*-

;; Loaded after the snippets of docs/emacs.md, whose functions it uses. Each scenario is a command;
;; what it saw is printed as one line of JSON.

(require 'json)
(require 'cl-lib)

(defvar patience 40 "Seconds to wait for an answer: far more than one takes.")
(setq jsonrpc-default-request-timeout patience) ; what the how-to's functions wait
(defvar notified nil "What the daemon told us, latest first.")
(defvar died nil "What became of requests that were open when the daemon ended.")
(defvar changes nil "What the sentinel was told, latest first.")

(advice-add 'text-tools--notified :before
            (lambda (_connection method params) (push (list method params) notified)))
(advice-add 'jsonrpc--process-sentinel :before
            (lambda (_process change) (push change changes)))

(defun saw (&rest what)
  "Print WHAT, a property list."
  (princ (format "\nSAW %s\n" (json-encode what))))

(defun ask (method params)
  "Ask for METHOD with PARAMS and wait; return the result, or the error as a property list."
  (condition-case failure
      (jsonrpc-request (text-tools-connect) method params :timeout patience)
    (jsonrpc-error
     (let ((details (cddr failure)))
       (list :code (alist-get 'jsonrpc-error-code details)
             :message (alist-get 'jsonrpc-error-message details)
             :data (alist-get 'jsonrpc-error-data details))))))

(defun wait-until (done)
  "Wait until the function DONE returns non-nil."
  (with-timeout (patience (error "Waited in vain; the log says: %s" (daemon-log)))
    (while (not (funcall done))
      (accept-process-output nil 0.05))))

(defun daemon-log ()
  (with-current-buffer (jsonrpc-stderr-buffer text-tools-connection) (buffer-string)))

(defun quit-and-tell ()
  "End the daemon as the how-to says; tell how that looked."
  (let ((process (jsonrpc--process text-tools-connection)))
    (text-tools-quit)
    ;; A process that is no longer alive may still have its sentinel to run.
    (wait-until (lambda () changes))
    (list :status (process-exit-status process)
          :changes (vconcat changes)
          :died (vconcat died))))

(defun scenario-requests ()
  (let ((named (ask 'text.count '(:text "one two\nthree")))
        (by-position (ask 'text.sort [["b" "a" "C"]]))
        (beyond-ascii (ask 'text.sort '(:lines ["\u00fc" "\U0001F600" "na\u00efve"] :reverse t)))
        (none-given (ask 'text.opened nil))
        (version (ask 'version nil))
        (handshake (ask 'initialize '(:processId 1 :capabilities nil))))
    (saw :named named :positional by-position :beyond-ascii beyond-ascii
         :none-given none-given :version version :handshake handshake
         :end (quit-and-tell))))

(defun scenario-asynchronous ()
  (let (result failure)
    (jsonrpc-async-request (text-tools-connect) 'text.count '(:text "a b c")
                           :success-fn (lambda (it) (setq result it)) :timeout patience)
    (jsonrpc-async-request (text-tools-connect) 'text.count '(:text 5)
                           :error-fn (lambda (it) (setq failure it)) :timeout patience)
    (let ((at-once (or result failure)))
      (wait-until (lambda () (and result failure)))
      (saw :at-once at-once :result result :failure failure :end (quit-and-tell)))))

(defun scenario-errors ()
  (saw :own (ask 'text.check '(:name "notes"))
       :params (ask 'text.count '(:txt "a"))
       :missing (ask 'text.count nil)
       :method (ask 'text.nonsense '(:a 1))
       ;; A string is not a method's name for jsonrpc.el: it sends null.
       :null-method (ask "text.count" '(:text "a"))
       :after (ask 'text.count '(:text "still here"))
       :end (quit-and-tell)))

(defun scenario-notifications ()
  (let ((connection (text-tools-connect)))
    (jsonrpc-notify connection 'text.open '(:name "notes" :text "good\nbad  "))
    (jsonrpc-notify connection 'text.nonsense nil)
    (jsonrpc-notify connection 'text.open '(:name 5))
    (jsonrpc-notify connection 'initialized '(:a 1))
    (let ((opened (ask 'text.opened nil)))
      (wait-until (lambda () notified))
      (saw :opened opened :notified (vconcat (nreverse notified)) :end (quit-and-tell)))))

(defun scenario-pipelined ()
  (let (order failures)
    (dotimes (number 100)
      (jsonrpc-async-request (text-tools-connect) 'text.count
                             (list :text (make-string number ?x))
                             :success-fn (lambda (it) (push (plist-get it :characters) order))
                             :error-fn (lambda (it) (push it failures))
                             :timeout patience))
    (wait-until (lambda () (= 100 (+ (length order) (length failures)))))
    (saw :order (vconcat (nreverse order)) :failures (vconcat failures) :end (quit-and-tell))))

(defun scenario-asked ()
  ;; The answers are typed by the test, on our stdin.
  (let ((filled (ask 'text.fill '(:template "Dear {name}, dear {other}, dear {name}"))))
    (advice-add 'text-tools--asked :override
                (lambda (&rest _) (jsonrpc-error :code -32601 :message "Method not found")))
    (let ((unknown (ask 'text.fill '(:template "{name}"))))
      (advice-add 'text-tools--asked :override (lambda (&rest _) (error "Broken")))
      (saw :filled filled :unknown unknown :broken (ask 'text.fill '(:template "{name}"))
           :after (ask 'text.count '(:text "a")) :end (quit-and-tell)))))

(defun scenario-shutdown-with-open-requests ()
  (let (results)
    (text-tools-connect)
    (dotimes (_ 20)
      (jsonrpc-async-request text-tools-connection 'text.count '(:text "a")
                             :success-fn (lambda (it) (push it results))
                             :error-fn (lambda (it) (push it died))
                             :timeout patience))
    (let ((end (quit-and-tell)))
      (wait-until (lambda () (= 20 (+ (length results) (length died)))))
      (saw :results (length results) :end end))))

(defun scenario-cannot-start ()
  (setq text-tools-command '("duet-rpc" "serve" "nothing.py"))
  (let ((refused (condition-case failure (ask 'text.count '(:text "one"))
                   (error (list :message (error-message-string failure))))))
    (wait-until (lambda () (and changes (string-match-p "nothing.py" (daemon-log)))))
    (saw :refused refused :changes (vconcat changes))))

(defun scenario-quit-emacs ()
  (saw :named (ask 'text.count '(:text "one"))))

(defun scenario-how-to ()
  "Use every command of the how-to, as a person would."
  (let (messages)
    (cl-letf (((symbol-function 'message)
               (lambda (format &rest rest)
                 (when format (push (apply #'format-message format rest) messages)))))
      (with-temp-buffer
        (rename-buffer "notes")
        (insert "one two \nthree")
        (text-tools-count-region (point-min) (point-max))
        (text-tools-check-buffer)
        (text-tools-open-buffer)
        (text-tools-check-buffer)
        (erase-buffer)
        (text-tools-insert-template "Dear {name}")
        (push (buffer-string) messages))
      (text-tools-search "needle" (getenv "HAYSTACK"))
      (wait-until (lambda () (seq-some (lambda (it) (string-prefix-p "Found" it)) messages)))
      (text-tools-search "(" (getenv "HAYSTACK"))
      (wait-until (lambda () (string-prefix-p "Not a regular" (car messages))))
      (save-window-excursion (text-tools-debug))
      (wait-until (lambda () (string-match-p "started" (daemon-log)))))
    (let ((log (daemon-log))
          (events (with-current-buffer (jsonrpc-events-buffer text-tools-connection)
                    (buffer-string))))
      (saw :messages (vconcat (nreverse messages)) :log log :events events
           :end (quit-and-tell)))))
